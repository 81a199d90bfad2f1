package trust

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

func read(t testing.TB, file string) string {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// TestOneSideWithout: where one engine has no identity, or another kind of it, the error names the options and the end
// at which they are missing.
func TestOneSideWithout(t *testing.T) {
	ca := newAuthority(t, "ca")
	with, member := certified(t, ca), newBench(t).secretLines(strings.Repeat("s", 32)).open()
	for _, as := range []Role{Initiator, Target} {
		there := as.other().String()
		for _, without := range []*Operator{nil, member.Operator} {
			_, err := check(t, without, with.Operator, as)
			require.ErrorIs(t, err, ErrMissing)
			assert.ErrorContains(t, err, "the "+as.String()+" has no certificate, and tls_ca of the "+there+" demands one; set tls_ca, tls_cert and tls_key at the "+as.String())
		}
		for _, without := range []*Operator{nil, with.Operator} {
			_, err := check(t, without, member.Operator, as)
			require.ErrorIs(t, err, ErrMissing)
			assert.ErrorContains(t, err, "the "+as.String()+" has no secret, and secret_file of the "+there+" demands one; set secret_file at the "+as.String())
		}
	}
	none := (*Operator)(nil)
	assert.EqualError(t, none.Meet(true), "only one of two engines has an operator's identity: the peer demands one; "+
		"set tls_ca, tls_cert and tls_key, or secret_file, at this engine")
	assert.EqualError(t, with.Meet(false), "only one of two engines has an operator's identity: this engine demands one; "+
		"set tls_ca, tls_cert and tls_key, or secret_file, at the peer's engine")
	assert.NoError(t, with.Meet(true))
}

// TestBoth: if a certificate and a secret are set, both are demanded.
func TestBoth(t *testing.T) {
	ca := newAuthority(t, "ca")
	secret, wrong := strings.Repeat("s", 32), strings.Repeat("w", 32)
	with := func(line string) *bench {
		cert, key := ca.issue(ed25519Key(t))
		return newBench(t).pemFiles(ca.pem(), cert, key).secretLines(line).open()
	}
	a, b := with(secret), with(secret)
	peer, err := check(t, a.Operator, b.Operator, Initiator)
	require.NoError(t, err)
	assert.NotZero(t, peer.Until)
	_, err = check(t, with(wrong).Operator, b.Operator, Initiator)
	assert.ErrorIs(t, err, ErrSecret)
	_, err = check(t, certified(t, ca).Operator, b.Operator, Initiator)
	assert.ErrorIs(t, err, ErrMissing)
	_, err = check(t, newBench(t).secretLines(secret).open().Operator, b.Operator, Initiator)
	assert.ErrorIs(t, err, ErrMissing)
}

// TestBadConfig: errors name the option, the file and what to do.
func TestBadConfig(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert, key := ca.issue(ed25519Key(t))
	_, otherKey := ca.issue(ed25519Key(t))
	for name, tt := range map[string]struct {
		change func(b *bench)
		want   string
	}{
		"no key":        {func(b *bench) { b.cfg.Key = "" }, "set all three, or none"},
		"no CA":         {func(b *bench) { b.cfg.CA = "" }, "set all three, or none"},
		"CA alone":      {func(b *bench) { b.cfg.Cert, b.cfg.Key = "", "" }, "set all three, or none"},
		"peers alone":   {func(b *bench) { b.cfg = Config{Peers: []string{"*"}} }, "tls_peers is set without tls_ca"},
		"required":      {func(b *bench) { b.cfg = Config{Required: true} }, "require_identity=on"},
		"missing":       {func(b *bench) { b.cfg.Key += "x" }, "tls_key: stat "},
		"a folder":      {func(b *bench) { b.cfg.CA = b.dir }, "tls_ca=DIR: not a regular file"},
		"other key":     {func(b *bench) { b.write("key.pem", otherKey) }, "private key does not match"},
		"no PEM":        {func(b *bench) { b.write("cert.pem", "hello") }, "tls_cert=DIR/cert.pem and tls_key=DIR/key.pem do not fit together"},
		"half a CA":     {func(b *bench) { b.write("ca.pem", ca.pem()[:200]) }, "tls_ca=DIR/ca.pem: a PEM block is damaged or cut off"},
		"a key as CA":   {func(b *bench) { b.write("ca.pem", key) }, "tls_ca=DIR/ca.pem: no certificate in PEM form"},
		"long chain":    {func(b *bench) { b.write("cert.pem", cert+strings.Repeat(ca.pem(), wire.MaxChain)) }, "5 certificates, at most 4"},
		"huge":          {func(b *bench) { b.write("ca.pem", strings.Repeat("#", mostBytes+1)) }, "more than 1048576 bytes"},
		"short secret":  {func(b *bench) { b.secretLines("# old", strings.Repeat("s", 31)) }, "secret_file=DIR/secret, line 2: a secret of 31 bytes, at least 32; make one with: openssl rand -base64 32"},
		"no secret":     {func(b *bench) { b.secretLines("# none", "") }, "secret_file=DIR/secret: file has no secret; make one"},
		"many secrets":  {func(b *bench) { b.secretLines(strings.Repeat(strings.Repeat("s", 32)+"\n", 17)) }, "line 17: more than 16 secrets"},
		"secret absent": {func(b *bench) { b.cfg.SecretFile = filepath.Join(b.dir, "none") }, "secret_file: stat "},
	} {
		b := newBench(t).pemFiles(ca.pem(), cert, key)
		tt.change(b)
		o, err := Open(b.cfg)
		assert.Nil(t, o, name)
		require.ErrorIs(t, err, ErrConfig, name)
		assert.ErrorContains(t, err, strings.ReplaceAll(tt.want, "DIR", b.dir), name)
		assert.NotContains(t, err.Error(), strings.Repeat("s", 31), "%s: secrets stay out of errors", name)
	}
}

// TestModes: a secret that others may read is warned of, once, also when it is renewed.
func TestModes(t *testing.T) {
	for mode, wide := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: true, 0o604: true, 0o700: true} {
		b := newBench(t).secretLines(strings.Repeat("s", 32))
		require.NoError(t, os.Chmod(b.cfg.SecretFile, mode))
		b.open()
		require.NoError(t, os.Chmod(b.cfg.SecretFile, mode|0o200))
		b.secretLines(strings.Repeat("t", 32)).later()
		assert.EqualValues(t, 2, b.Generation())
		assert.Equal(t, boolInt(wide), b.warned("open to more than its owner; use chmod 600"), "%o: %s", mode, b.log.String())
	}
	ca := newAuthority(t, "ca")
	b := certified(t, ca)
	require.NoError(t, os.Chmod(b.cfg.Key, 0o644))
	assert.Equal(t, 1, b.open().warned("option=tls_key"))
}

// TestNone: without files there is no operator, which proves nothing and accepts everybody.
func TestNone(t *testing.T) {
	o, err := Open(Config{})
	require.NoError(t, err)
	require.Nil(t, o)
	assert.False(t, o.Wants())
	assert.Zero(t, o.Generation())
	id, err := o.Prove(Initiator, binding, ends, nil)
	assert.NoError(t, err)
	assert.Zero(t, id)
	peer, err := o.Check(Target, binding, ends, &wire.Identity{Secret: []byte("x")})
	assert.NoError(t, err)
	assert.Zero(t, peer)
	assert.NoError(t, o.Meet(false))
}
