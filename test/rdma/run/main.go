// Command run is tools/rdma-run: it runs a command in a temporary kernel with RDMA rails.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"gorail/test/rdma/bed"
)

const usage = `usage: tools/rdma-run [options] COMMAND [ARGUMENT...]   in one guest: hosts A and B joined by rails, in one namespace
       tools/rdma-run -pair [options] COMMAND-A COMMAND-B   in two guests: hosts A and B

bash runs a COMMAND that is a single word (with -pair: each COMMAND). The command starts in the current folder, as root, with the
variables GORAIL_*, NIXL_*, UCX_* and FI_* of the environment. All files that the command writes are gone afterwards. The exit status is
the command's (with -pair: A's, or B's if A's is 0), or 125 if the guest itself failed.

`

// inherited are the prefixes of the environment variables that a command inherits.
var inherited = []string{"GORAIL_", "NIXL_", "UCX_", "FI_"}

func main() {
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	kind := flag.String("k", "rxe", "`driver` of the RDMA devices, rxe; none: network interfaces only")
	rails := flag.Int("n", 0, "`number` of rails")
	rate := flag.String("r", "", "`rate` of a rail each way, e.g. 200mbit")
	delay := flag.String("d", "", "`delay` of a rail each way, e.g. 1ms")
	mtu := flag.Int("mtu", 0, "MTU of the rails' interfaces, `bytes` (default 4200)")
	memory := flag.Int("m", 2048, "memory of a guest, `MiB`")
	limit := flag.Duration("t", 10*time.Minute, "`time` after which guests are killed")
	pair := flag.Bool("pair", false, "two guests")
	flag.Parse()
	if n := flag.NArg(); n == 0 || *pair && n != 2 {
		flag.Usage()
		os.Exit(2)
	}
	g := bed.Guest{Rails: *rails, Rate: *rate, Delay: *delay, MTU: *mtu, Memory: *memory, Limit: *limit}
	if *kind != "none" {
		g.Kind = bed.Kind(*kind)
	}
	g.Stdout, g.Stderr = os.Stdout, os.Stderr
	if dir, err := os.Getwd(); err == nil {
		g.Dir = dir
	}
	for _, e := range os.Environ() {
		for _, p := range inherited {
			if strings.HasPrefix(e, p) {
				g.Env = append(g.Env, e)
			}
		}
	}
	status, bad := run(g, *pair, flag.Args())
	if bad != nil {
		fmt.Fprintln(os.Stderr, "rdma-run:", bad)
		status = 125
	}
	os.Exit(status)
}

func run(g bed.Guest, pair bool, args []string) (status int, err error) {
	if err := bed.Check(); err != nil {
		return 0, err
	}
	if pair {
		a, b, err := g.Pair(bed.Shell(args[0]), bed.Shell(args[1]))
		if status = a.Status; status == 0 {
			status = b.Status
		}
		return status, err
	}
	if len(args) == 1 {
		args = bed.Shell(args[0])
	}
	r, err := g.Run(args...)
	return r.Status, err
}
