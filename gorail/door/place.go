package door

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// EnvToken is the variable with a listener's token, for callers: an argument would stand in the list of processes.
const EnvToken = "GORAIL_PEER_TOKEN"

// Place is a listener on another host. It implements pflag.Value, and never shows its token.
type Place struct {
	Addr  string // host:port; "": none
	token string // "": EnvToken has it
}

// At makes a Place of "host:port#TOKEN". Without #TOKEN the variable EnvToken has the token.
func At(text string) Place {
	addr, token, _ := strings.Cut(text, "#")
	return Place{addr, strings.TrimSpace(token)}
}

// Set implements pflag.Value.
func (p *Place) Set(text string) error {
	*p = At(text)
	return nil
}

// String implements pflag.Value: the address alone.
func (p *Place) String() string { return p.Addr }

// Type implements pflag.Value.
func (p *Place) Type() string { return "host:port#token" }

// Given reports that there is an address.
func (p *Place) Given() bool { return p.Addr != "" }

// secret is the token.
func (p *Place) secret() (string, error) {
	token := cmp.Or(p.token, os.Getenv(EnvToken))
	if token == "" {
		return "", errNoToken
	}
	return token, nil
}

var errNoToken = errors.New("no token: write HOST:PORT#TOKEN, as gorail bench --listen or gorail doctor --listen prints it there, or set " + EnvToken)

// listenAt is the address that a user means: a port alone, or :PORT, is that of the loopback interface.
func listenAt(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 16); err == nil {
		text = ":" + text
	}
	host, port, err := net.SplitHostPort(text)
	if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil {
		return "", fmt.Errorf("--listen %q: write HOST:PORT, or PORT for this host alone", text)
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port), nil
}

// reach says who can reach an address; "": this host alone.
func reach(a net.Addr) string {
	at, ok := a.(*net.TCPAddr)
	switch {
	case ok && at.IP.IsLoopback():
		return ""
	case !ok || at.IP.IsUnspecified():
		return "every host that reaches any address of this host"
	}
	return "every host that reaches " + at.IP.String()
}
