package handshake

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const sysctls = "/proc/sys/net/ipv4/"

// CheckCongestion returns why connections cannot have the congestion control, or nil. Implements setsockopt.
func (o Sockets) CheckCongestion() error {
	if o.Congestion == "" {
		return nil
	}
	return o.congestionError(try(func(fd int) error {
		return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, o.Congestion)
	}))
}

func (o Sockets) congestionError(err error) error {
	there, allowed := names("tcp_available_congestion_control"), names("tcp_allowed_congestion_control")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("option tcp_congestion=%s: %w: this kernel has %s, and this process may use %s; name one of these, or load the module tcp_%s",
			o.Congestion, err, there, allowed, o.Congestion)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("option tcp_congestion=%s: %w: this process may use %s (this kernel has %s); name one of these, "+
			"add the name to the sysctl net.ipv4.tcp_allowed_congestion_control, or give the process CAP_NET_ADMIN", o.Congestion, err, allowed, there)
	}
	return fmt.Errorf("option tcp_congestion=%s: %w", o.Congestion, err)
}

// try sets an option of a socket that is not used otherwise.
func try(set func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return set(fd)
}

// names reads a list of names from a sysctl, for a message.
func names(sysctl string) string {
	b, err := os.ReadFile(sysctls + sysctl)
	if list := strings.Join(strings.Fields(string(b)), ", "); err == nil && list != "" {
		return list
	}
	return "(" + sysctl + " cannot be read)"
}
