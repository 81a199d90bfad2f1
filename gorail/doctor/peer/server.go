package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"gorail/backend/option"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/door"
	"gorail/gorail/side"
)

// Command is the argument that makes this program a process of gorail doctor --listen.
const Command = "doctor-peer"

// Server is one process for one connection of a peer. Its methods are the peer's commands, beside those of a benchmark.
type Server struct {
	*side.Server
	Version string

	ports []net.Listener
	proof []byte // of the rail sm, once it is open
}

// Main serves a peer until it closes the connection. others are further services of the process, by their names.
func Main(version string, others map[string]any) error {
	return side.Serve(&Server{Server: side.New(), Version: version}, others)
}

// Listen serves peers until accepting fails. Its processes find the wheel and the plugin in the environment.
func Listen(l *door.Listener, params map[string]string) error {
	args := machine.OpenArgs("peer", nil)
	for name, value := range map[string]string{"NIXL_WHEEL_DIR": args.Wheel, "NIXL_PLUGIN_DIR": args.PluginDir} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	for name, value := range params { // a process has parameters of its own only from the other side
		if err := os.Setenv("GORAIL_"+strings.ToUpper(name), value); err != nil {
			return err
		}
	}
	return side.ListenAs(l, Command)
}

// Facts tells what this side is.
func (s *Server) Facts(_ side.None, out *Facts) error {
	f, _ := about(s.Version, machine.Here(s.Version, nil))
	*out = *f
	return nil
}

// Offer opens the rail sm, which stays open with the process, and returns its proof.
func (s *Server) Offer(_ side.None, proof *[]byte) error {
	if s.proof == nil {
		o, _, err := option.Parse(nil, os.LookupEnv)
		if err == nil {
			s.proof, _, err = machine.Offer(o)
		}
		if err != nil {
			return err
		}
	}
	*proof = s.proof
	return nil
}

// Reach finds the way from this side to the process that offers a proof. The rail sm reads proofs of any process of the host.
func (s *Server) Reach(proof []byte, way *string) error {
	o, _, err := option.Parse(nil, os.LookupEnv)
	if err == nil {
		*way, err = machine.Reach(o, proof)
	}
	return err
}

// OpenPortArgs choose between this side's ports for data and for control connections. The caller names no port.
type OpenPortArgs struct{ Data bool }

// OpenPortOut is the port that was free.
type OpenPortOut struct{ Port int }

// mostPorts is more than a check opens.
const mostPorts = 8

// OpenPort listens on a free port that an engine of this side would take, and answers there.
func (s *Server) OpenPort(in OpenPortArgs, out *OpenPortOut) error {
	if len(s.ports) == mostPorts {
		return fmt.Errorf("%d ports are open: a check opens fewer", mostPorts)
	}
	o, _, err := option.Parse(nil, os.LookupEnv)
	if err != nil {
		return err
	}
	from := o.ControlPort
	if in.Data {
		from = o.DataPort
	}
	l, err := listen(from)
	if err != nil {
		return err
	}
	s.ports = append(s.ports, l)
	out.Port = l.Addr().(*net.TCPAddr).Port
	return nil
}

// listen takes the first free port, as an engine does.
func listen(r option.PortRange) (net.Listener, error) {
	if r.First == 0 {
		return serve(net.Listen("tcp", ":0"))
	}
	var last error
	for port := int(r.First); port <= int(r.Last); port++ {
		l, err := serve(net.Listen("tcp", ":"+strconv.Itoa(port)))
		if err == nil {
			return l, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no free port in %d-%d: %w", r.First, r.Last, last)
}

// serve answers each connection until the listener closes: a length, that many bytes, then one byte back.
func serve(l net.Listener, err error) (net.Listener, error) {
	if err != nil {
		return nil, err
	}
	go func() {
		places := make(chan struct{}, mostAnswers)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			places <- struct{}{}
			go func() {
				answer(c)
				<-places
			}()
		}
	}()
	return l, nil
}

// mostAnswers bounds the connections to a port at a time. Each ends within portTime.
const mostAnswers = 64

// most bounds what a caller may send.
const most = 1 << 20

func answer(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(portTime))
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > most {
		return
	}
	if _, err := io.CopyN(io.Discard, c, int64(n)); err == nil {
		_, _ = c.Write([]byte{1})
	}
}

// ConnectArgs name a port of the other side, and the address to come from.
type ConnectArgs struct{ From, To string }

// ConnectOut has the error as text, "" for none.
type ConnectOut struct{ Err string }

// ConnectBack connects to a port of the other side. A caller with the token may name any address: it gets one byte and an error's kind.
func (s *Server) ConnectBack(in ConnectArgs, out *ConnectOut) error {
	if _, err := connectTo(in.From, in.To, 1); err != nil {
		out.Err = cause(err)
	}
	return nil
}

// portTime bounds a connection to a port. A dropped packet is sent again after one second.
const portTime = 2500 * time.Millisecond

// path is what a connection showed.
type path struct{ mtu int }

// errLost is the error of a connection that carries small packets alone.
var errLost = errors.New("connected, and then the bytes did not arrive")

// connectTo connects, sends n bytes and waits for the answer.
func connectTo(from, to string, n int) (path, error) {
	d := net.Dialer{Timeout: portTime}
	if ip := net.ParseIP(from); ip != nil {
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	c, err := d.Dial("tcp", to)
	if err != nil {
		return path{}, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(portTime))
	b := binary.BigEndian.AppendUint32(nil, uint32(n))
	if _, err := c.Write(append(b, make([]byte, n)...)); err != nil {
		return path{}, fmt.Errorf("%w: %w", errLost, err)
	}
	if _, err := io.ReadFull(c, b[:1]); err != nil {
		return path{}, fmt.Errorf("%w: %w", errLost, err)
	}
	return path{mtu(c)}, nil
}

// Now is the time here.
func (s *Server) Now(_ side.None, out *time.Time) error {
	*out = time.Now()
	return nil
}
