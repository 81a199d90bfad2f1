package lab

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/test/skip"
)

func TestParse(t *testing.T) {
	s, err := Parse("rails=3,rate=1gbit/500mbit,delay=1ms")
	require.NoError(t, err)
	require.Equal(t, Spec{3, []uint64{1e9, 500e6}, time.Millisecond}, s)
	require.Equal(t, uint64(500e6), s.Rate(2))
	require.Equal(t, "3 shaped rails of 1 and 0.5 Gbit/s with 1ms each way", s.String())
	for text, says := range map[string]string{"rails=0": "from 1 to 8", "rails=x": "from 1 to 8", "rate=1": "1mbit to 400gbit", "rate=-1gbit": "1mbit", "delay=1h": "up to 1s",
		"loss=1": "want rails=N", "": "want rails=N", "rails=1,rate=1gbit/2gbit": "2 rates for 1 rails"} {
		_, err := Parse(text)
		require.ErrorContains(t, err, says, text)
	}
}

// TestLab: bytes go over a rail at its rate at most, and not while it is cut.
func TestLab(t *testing.T) {
	if os.Geteuid() != 0 {
		_, err := New(Spec{Rails: 1, Rates: []uint64{1e9}})
		skip.OrFail(t, err)
	}
	const size = 4 << 20
	l, err := New(Spec{Rails: 2, Rates: []uint64{400e6}}) // a delay needs netem, which not every kernel has
	if err != nil {
		skip.OrFail(t, err)
	}
	defer l.Close()
	var at net.Listener
	require.NoError(t, l.In(true, func() (err error) {
		at, err = net.Listen("tcp", net.JoinHostPort(Addr(1), "0"))
		return err
	}))
	defer at.Close()
	got := make(chan int64)
	go func() {
		c, err := at.Accept()
		if err != nil {
			got <- -1
			return
		}
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	before, other := l.Sent(1, false), l.Sent(0, false)
	began := time.Now()
	require.NoError(t, l.In(false, func() error {
		c, err := net.Dial("tcp", at.Addr().String())
		if err != nil {
			return err
		}
		if _, err := c.Write(make([]byte, size)); err != nil {
			return err
		}
		return c.Close()
	}))
	require.EqualValues(t, size, <-got)
	require.Greater(t, time.Since(began).Seconds(), 0.5*size*8/400e6)
	require.Greater(t, l.Sent(1, false)-before, uint64(size))
	require.Less(t, l.Sent(0, false)-other, uint64(64<<10))

	require.NoError(t, l.Cut(1, true))
	err = l.In(false, func() error {
		c, err := net.DialTimeout("tcp", at.Addr().String(), 100*time.Millisecond)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	require.Error(t, err)
	require.NoError(t, l.Cut(1, false))
}
