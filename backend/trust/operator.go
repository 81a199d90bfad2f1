package trust

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Config names the operator's files. The three PEM files are given together or not at all: an engine that checked and
// could not prove would be refused by every engine that it accepts.
type Config struct {
	CA         string   // option tls_ca: PEM
	Cert       string   // option tls_cert: PEM, the engine's certificate first, then intermediates
	Key        string   // option tls_key: PEM
	Peers      []string // option tls_peers: see matches; empty: every holder of a certificate of CA
	SecretFile string   // option secret_file
	Required   bool     // option require_identity
	Log        *slog.Logger
	Now        func() time.Time // nil: time.Now
}

// Errors of Open and Meet. Check has its own.
var (
	ErrConfig = errors.New("the operator's identity cannot be used")
	ErrUneven = errors.New("only one of two engines has an operator's identity")
)

// every is the shortest time between two looks at the files.
const every = time.Second

// Operator proves our operator's identity and checks that of peers. A nil Operator has none: it proves nothing and
// accepts everybody. It is safe for concurrent use.
type Operator struct {
	cfg  Config
	held atomic.Pointer[proofs]

	// looking guards the fields below. A caller that finds it locked uses the held files and does not read the file system.
	looking sync.Mutex
	looked  time.Time
	certs   source[*credentials]
	secrets source[[]Secret]
	open    map[string]bool // files whose mode has been warned of
}

// proofs are what the files hold. They are never modified.
type proofs struct {
	*credentials // nil: no certificate
	secrets      []Secret
	generation   uint64
}

// Open reads the operator's files. It returns nil if no file is set. Its errors wrap ErrConfig, name the option and the
// file, and say what to do.
func Open(cfg Config) (*Operator, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if cfg.CA == "" && cfg.SecretFile == "" {
		return nil, nil
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	o := &Operator{cfg: cfg, open: map[string]bool{}}
	if cfg.CA != "" {
		o.certs = source[*credentials]{files: []file{{"tls_ca", cfg.CA}, {"tls_cert", cfg.Cert}, {"tls_key", cfg.Key}}, parse: parseCredentials}
	}
	if cfg.SecretFile != "" {
		o.secrets = source[[]Secret]{files: []file{{"secret_file", cfg.SecretFile}}, parse: parseSecrets}
	}
	o.held.Store(&proofs{})
	if err := o.read(cfg.Now()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if cfg.CA != "" && len(cfg.Peers) == 0 {
		cfg.Log.Warn("every holder of a certificate of tls_ca is accepted as a peer; in a service mesh that is every workload. Set tls_peers", "tls_ca", cfg.CA)
	}
	return o, nil
}

func (c *Config) check() error {
	switch some, all := c.CA+c.Cert+c.Key != "", c.CA != "" && c.Cert != "" && c.Key != ""; {
	case some && !all:
		return fmt.Errorf("tls_ca=%q, tls_cert=%q, tls_key=%q: engines prove themselves to each other; set all three, or none", c.CA, c.Cert, c.Key)
	case !some && len(c.Peers) > 0:
		return errors.New("tls_peers is set without tls_ca: only certificates have names. Set tls_ca, tls_cert and tls_key, or remove tls_peers")
	case !some && c.SecretFile == "" && c.Required:
		return errors.New("require_identity=on, and no identity is given: set tls_ca, tls_cert and tls_key, or secret_file")
	}
	return nil
}

// Wants reports whether peers must prove an identity. An engine that wants it has one itself.
func (o *Operator) Wants() bool { return o != nil }

// Meet compares this engine with what a peer's metadata says (wire.ConnBlob.Proves), before anything is dialled. An
// error wraps ErrUneven and names the options to set.
func (o *Operator) Meet(peerWants bool) error {
	const set = "set tls_ca, tls_cert and tls_key, or secret_file,"
	switch {
	case peerWants && !o.Wants():
		return fmt.Errorf("%w: the peer demands one; %s at this engine", ErrUneven, set)
	case !peerWants && o.Wants():
		return fmt.Errorf("%w: this engine demands one; %s at the peer's engine", ErrUneven, set)
	}
	return nil
}

// Generation grows when the contents of our files have changed and are good. The files are looked at once a second at
// most.
func (o *Operator) Generation() uint64 {
	if o == nil {
		return 0
	}
	return o.look().generation
}

// look reads the files again if it is time and they have changed.
func (o *Operator) look() *proofs {
	if o.looking.TryLock() {
		defer o.looking.Unlock()
		now := o.cfg.Now()
		if since := now.Sub(o.looked); since < 0 || since >= every {
			if err := o.read(now); err != nil {
				o.cfg.Log.Warn("the operator's files have changed and cannot be used; the old contents stay in use", "err", err)
			}
		}
	}
	return o.held.Load()
}

// read looks at the files. Certificates and secrets change one without the other.
func (o *Operator) read(now time.Time) error {
	o.looked = now
	newCerts, err := o.certs.look(now)
	newSecrets, err2 := o.secrets.look(now)
	if newCerts || newSecrets {
		o.held.Store(&proofs{o.certs.held, o.secrets.held, o.held.Load().generation + 1})
		o.warnModes()
	}
	if newCerts {
		own := o.certs.held
		if err := own.verify(own.parsed, now); err != nil {
			o.cfg.Log.Warn("peers with the same tls_ca refuse our own certificate; renew it", "tls_cert", o.cfg.Cert, "err", err)
		}
	}
	switch {
	case err == nil:
		return err2
	case err2 == nil:
		return err
	}
	return fmt.Errorf("%w; %w", err, err2)
}

// warnModes warns once of each secret that other users may read.
func (o *Operator) warnModes() {
	for _, f := range []file{{"tls_key", o.cfg.Key}, {"secret_file", o.cfg.SecretFile}} {
		if mode, wide := f.wide(); wide && !o.open[f.path] {
			o.open[f.path] = true
			o.cfg.Log.Warn("a secret file is open to more than its owner; use chmod 600", "option", f.option, "file", f.path, "mode", fmt.Sprintf("%04o", mode))
		}
	}
}
