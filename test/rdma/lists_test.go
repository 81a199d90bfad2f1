package rdma

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/testenv"
)

// Lists of tests of test/e2e that run in guests. Each test of test/e2e is in one of these lists or in excluded.
var (
	// scenarios are tests that take seconds.
	scenarios = []string{"TestNotifAlone", "TestNotifAfterData"}

	// few are the tests for four rails: all rails take part.
	few = append(scenarios, "TestBothDirections", "TestDeregisterInFlight", "TestReloadInFlight")

	// several are the tests for two rails.
	several = append(few, "TestLoopback", "TestTwoAgentsOneProcess", "TestRestart", "TestRestartInitiator", "TestStopped", "TestReload", "TestRemoveDelivers", "TestCloseDelivers")

	// most are all tests that run on devices.
	most = append(several, "TestScattered", "TestTargetAsleep", "TestInitiatorAsleep", "TestFirstPostAsleep", "TestManyAgentsOneProcess", "TestPartialMetadata", "TestCorruptMetadata", "TestDeadPeer", "TestNotifUnread", "TestNotifManySenders", "TestConnectEarly", "TestKillInFlight", "TestCloseInFlight",
		"TestPeersComeAndGo", "TestPrepared", "TestRepost",
		"TestBackendOfRequest", "TestDeregisteredBehindPost", "TestLeavesBehindPost", "TestAccess", "TestDestroyedAfterSleep")

	// onRXM are the tests for libfabric's rxm. rxm has shared endpoints and no fence; operations of a dead peer may never complete.
	onRXM = append(scenarios, "TestBothDirections", "TestConnectEarly")
)

// excluded are the tests that do not run in guests, by the reason.
var excluded = map[string][]string{
	"TestVerbsSlicesAndLinks runs these": {"TestSlices", "TestLinks"},
	"moves gigabytes, or has a hundred thousand operations and more: minutes on the guest's one CPU": {"TestOver4GiB", "TestBigReservation",
		"TestMillionRequest", "TestPreparedHuge", "TestAgentsComeAndGo", "TestFreshAgents", "TestManyRegions", "TestSizes", "TestNotifBig"},
	"simulates hosts by network namespaces, across which rxe does not work; package inside has similar tests": {"TestCompression", "TestCompressionVRAM", "TestCompressionAuto", "TestTwoHosts", "TestAddressReplaced", "TestAddressOfOneRail", "TestAddressGone", "TestAddressAdded", "TestAddressGonePosts", "TestAddressFamily", "TestWireCut", "TestCut", "TestCutAddress", "TestMTU", "TestMTUOfControl", "TestDevices", "TestFirewall", "TestFirewallOfTwoLines", "TestRailLate", "TestRailsShare", "TestRailsApart", "TestHistory", "TestFailover", "TestLongLink", "TestLongLinkBytes", "TestStoppedOverTwoRails"},
	"TestVerbsStopped runs these": {"TestStoppedPeers", "TestStoppedForAMinute"},
	"uses GPU memory": {"TestVRAMTwoProcesses", "TestVRAMFreedUnsaid",
		"TestVRAMUnmappable", "TestVRAMHandles", "TestVRAMReload", "TestVRAMReleased", "TestVRAMReleaseEndsIt", "TestVRAMEveryCallFails",
		"TestVRAMFabric", "TestFabricVRAM", "TestStaged", "TestStagedKilled", "TestCompressionGPUs",
		"TestStagedWhileMapping", "TestManyGPUs", "TestMatrix", "TestVRAMRegisteredAnew", "TestVRAMOverlap", "TestVRAMOverlapInFlight", "TestVRAMOtherVisibleGPU", "TestVRAMHiddenGPU", "TestVRAMUnknownHandle",
		"TestMemoryGivenBack", "TestMemoryGivenBackByStopped", "TestHistoryGPU", "TestRemapped", "TestRemappedAsleep", "TestVRAMNotMapped", "TestVRAMNotMappedHere", "TestUCXSleeping",
		"TestNVLink", "TestNVLinkTraps", "TestNVLinkArena", "TestNVLinkGivenBack", "TestNVLinkStopped", "TestNVLinkRemapped", "TestNVLinkKilled", "TestNVLinkRegions",
		"TestNVLinkFar", "TestNVLinkLong", "TestNVLinkStuck", "TestNVLinkReboots", "TestNVLinkRights", "TestNVLinkHostMemory", "TestNVLinkHostRemapped", "TestNVLinkHostTwoGPUs", "TestNVLinkBench"},
	"uses shared memory": {"TestTargetExecutes", "TestMemoryInPost", "TestMemoryTargetStopped", "TestMemoryTargetAssists", "TestMemoryAssistantStopped", "TestMemoryRing", "TestMemoryOtherNetwork",
		"TestMemoryForbidden", "TestOneHost", "TestOneHostDescriptors", "TestFloodOfAnotherUser", "TestChildrenInheritNothing", "TestMemoryAccess"},
	"uses the libfabric of test/fabric":                                    {"TestFabricTwoHosts", "TestFabricLostSends", "TestFabricControlLost"},
	"counts or exhausts descriptors within less than a second":             {"TestNoDescriptors", "TestNoDescriptorsToConnect"},
	"needs an answer within a second, on one CPU with five processes":      {"TestSilentPeer", "TestIdleCPU", "TestStoppedPeerBesideOthers"},
	"needs a stopped peer to serve nothing; an RDMA device still serves":   {"TestTransferTimeout", "TestRemovedReadWritesNothing", "TestErrorMeansQuiet"},
	"uses listening sockets of tcp":                                        {"TestDataPort", "TestFloods", "TestFloodOfFewDescriptors", "TestDataPortShared", "TestIdleConnectionCut", "TestUnauthenticatedAtTheRails", "TestUnauthenticatedWhileAPeerConnects"},
	"is about the control channel alone":                                   {"TestIdentity"},
	"ends before a device is opened":                                       {"TestBadOptions", "TestAnotherTable", "TestFIPS", "TestForeignPeer", "TestUCXRefused"},
	"is about the tcp rail: its records, its threads":                      {"TestEncryption", "TestThreads", "TestThreadsShareMany"},
	"names its rails: tcp, and shared memory of one host and between pods": {"TestNoAllocations", "TestOrdinaryLifeIsQuiet", "TestRegisteredAnew", "TestAnewEndsWait", "TestAbsentMemory", "TestHostActs", "TestHostActsFirst", "TestHostActsNewPeer", "TestOverlap", "TestOverlapInFlight", "TestRegisteredAgain", "TestUCXSettings", "TestRanksShareRails", "TestRanksOfManyDevices"},
	"simulates pods by namespaces":                                         {"TestPods", "TestPodsFolder", "TestPodsMapped", "TestPodsRemapped", "TestPodsBothKilled", "TestPodKilled"},
	"is about a thread of the application":                                 {"TestThreadEnds"},
	"is about standard error, independent of the rails":                    {"TestStuckLog", "TestLogFile"},
}

// exactly returns a pattern for -run that matches these tests.
func exactly(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// declared finds the tests that a file declares.
var declared = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// TestLists: each test of test/e2e is in exactly one of most and excluded, and the other lists are parts of most.
func TestLists(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testenv.Root(), "test/e2e/*_test.go"))
	require.NoError(t, err)
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range declared.FindAllStringSubmatch(string(text), -1) {
			found = append(found, match[1])
		}
	}
	listed := slices.Clone(most)
	for _, names := range excluded {
		listed = append(listed, names...)
	}
	require.ElementsMatch(t, found, listed)
	for _, names := range [][]string{several, few, scenarios, onRXM} {
		require.Subset(t, most, names)
	}
}
