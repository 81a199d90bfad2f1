package conform

import (
	"slices"
	"testing"
)

type testCase struct {
	name string
	test func(*testing.T, *side, *side)
}

var traffic = []testCase{
	{"WriteAndRead", testWriteAndRead},
	{"Segments", testSegments},
	{"UnsignaledWrites", testUnsignaledWrites},
	{"SourceReused", testSourceReused},
	{"Messages", testMessages},
	{"Addresses", testAddresses},
	{"Keys", testKeys},
	{"ManyRegions", testManyRegions},
	{"RegisterUnderTraffic", testRegisterUnderTraffic},
	{"WaitFD", testWaitFD},
	{"Sleeps", testSleeps},
	{"CloseBusy", testCloseBusy},
}

var faults = []testCase{
	{"WrongKey", testWrongKey},
	{"ClosedRegion", testClosedRegion},
	{"Access", testAccess},
	{"InitiatorCloses", testInitiatorCloses},
	{"ClosesInRead", testClosesInRead},
	{"Fence", testFence},
}

// Run runs all tests. Each test gets two freshly opened and connected rails.
func Run(t *testing.T, of TraitsOf, open Opener) {
	RunTraffic(t, of, open)
	run(t, of, open, faults)
}

// RunTraffic runs the tests of data transfer, without the fault tests, which some fabrics cannot pass, and without the
// named tests.
func RunTraffic(t *testing.T, of TraitsOf, open Opener, but ...string) {
	run(t, of, open, slices.DeleteFunc(slices.Clone(traffic), func(c testCase) bool { return slices.Contains(but, c.name) }))
}

// RunAccess runs the test of the access of peers alone.
func RunAccess(t *testing.T, of TraitsOf, open Opener) {
	run(t, of, open, slices.DeleteFunc(slices.Clone(faults), func(c testCase) bool { return c.name != "Access" }))
}

func run(t *testing.T, of TraitsOf, open Opener, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, of, open)
			c.test(t, a, b)
		})
	}
}
