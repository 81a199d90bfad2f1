package rdma

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/testenv"
)

// Tests of test/e2e that run in guests. All of them are in one of these lists or in leftOut.
var (
	// scenarios take seconds.
	scenarios = []string{"TestNotifAlone", "TestNotifAfterData", "TestZeroLength"}

	// few are for four rails: what all rails take part in.
	few = append(scenarios, "TestBothDirections", "TestKillInitiator", "TestDeregisterInFlight", "TestReloadInFlight")

	// several are for two.
	several = append(few, "TestLoopback", "TestTwoAgentsOneProcess", "TestRestart", "TestStopped", "TestReleaseManyInFlight",
		"TestDeregisterLocalInFlight", "TestNotifMany", "TestNotifConcurrent", "TestReload", "TestRemoveDelivers", "TestCloseDelivers")

	// most is all that makes sense on devices.
	most = append(several, "TestScattered", "TestTargetAsleep", "TestInitiatorAsleep", "TestFirstPostAsleep", "TestManyAgentsOneProcess", "TestSameRangeTwice",
		"TestOverlapping", "TestPartialMetadata", "TestCorruptMetadata", "TestTruncatedMetadata", "TestDeadPeer", "TestNotifEmptyWithTransfer",
		"TestNotifUnread", "TestNotifManySenders", "TestConnectEarly", "TestKillIdle", "TestKillInFlight", "TestReleaseInFlight", "TestCloseInFlight",
		"TestPeersComeAndGo", "TestScatteredSmallInLarge", "TestPrepared", "TestRepost", "TestParallelRequests",
		"TestBackendOfRequest", "TestDeregisterUnderReposts",
		"TestDeregisteredBehindPost", "TestLeavesBehindPost")

	// onRXM are for libfabric's rxm, where endpoints are shared, nothing can be fenced, and a dead peer's operations may go unreported.
	onRXM = append(scenarios, "TestBothDirections", "TestNotifEmptyWithTransfer", "TestConnectEarly")
)

// leftOut are those that don't run in guests, by the reason.
var leftOut = map[string][]string{
	"is run by a test of its own, TestVerbsSlicesAndLinks": {"TestSlices", "TestLinks"},
	"moves gigabytes, or counts to a hundred thousand and more: minutes on the guest's one CPU": {"TestOver4GiB", "TestBigReservation",
		"TestMillionRequest", "TestPreparedHuge", "TestAgentsComeAndGo", "TestFreshAgents", "TestManyRegions", "TestSizes", "TestNotifBig"},
	"makes hosts of network namespaces, across which rxe does not work; package inside has the like": {"TestTwoHosts", "TestTwoHostsKill",
		"TestWireCut", "TestDevices", "TestFirewall", "TestFirewallOfTwoLines", "TestFirewallOnOneRail",
		"TestRailLate", "TestRailLateOnly", "TestRailDownForASession", "TestLoopbackAlone", "TestMoreThanMaxRails", "TestNoCommonDevice", "TestRailsShare", "TestRailCut", "TestRailsSoak", "TestStatsPaths"},
	"is run by a test of its own, TestVerbsStopped": {"TestStoppedPeers"},
	"is of GPUs' memory": {"TestVRAMTwoProcesses", "TestVRAMRegister", "TestVRAMNoDriver", "TestVRAMTakenBack", "TestVRAMFreedUnsaid",
		"TestVRAMUnmappable", "TestVRAMOneProcess", "TestVRAMHandles", "TestVRAMReleased", "TestVRAMReleaseEndsIt", "TestVRAMEveryCallFails",
		"TestVRAMMappedAgain", "TestVRAMFabric", "TestFabricVRAM", "TestStaged", "TestStagedReleased", "TestStagedKilled", "TestStagedTakenBack",
		"TestStagedWhileMapping", "TestManyGPUs", "TestMatrix"},
	"is of one host's memory":                                            {"TestMemoryChosen", "TestMemoryOldName", "TestMemoryInPost", "TestMemoryPollsNoMore", "TestMemoryTargetStopped", "TestMemoryTargetHelps", "TestMemoryHelperStopped", "TestMemoryOtherPIDs", "TestMemoryOtherNetwork"},
	"is of an imitated libfabric":                                        {"TestFabricOptions", "TestFabricOptionsRefused", "TestFabricTwoHosts", "TestFabricEmulated", "TestFabricLostSends", "TestFabricControlLost", "TestReleasedReadShared"},
	"has libfabric or its tcp provider in what it expects to be told":    {"TestNoLibfabric", "TestNothingToUse"},
	"counts by probes that the guest's kernel lacks":                     {"TestCrossings", "TestCrossingsBack"},
	"counts or takes away descriptors, within times under a second":      {"TestNoDescriptors", "TestNoDescriptorsToConnect"},
	"wants an answer in less than a second, on a CPU that five wait for": {"TestSilentPeer", "TestIdleCPU", "TestFirstEngine", "TestStoppedPeerBesideOthers"},
	"stops a peer that is to serve nothing then; an RDMA device does":    {"TestTransferTimeout", "TestReleasedReadWritesNothing", "TestErrorMeansQuiet"},
	"is of listening sockets of libfabric's tcp":                         {"TestDataPort", "TestDataPortsUsedUp", "TestUnauthenticatedAtTheRails", "TestUnauthenticatedWhileAPeerConnects"},
	"has come to its end before a device is opened, and is the same there": {"TestBadOptions", "TestStatsFileFromEnvironment",
		"TestAnotherTable", "TestFIPS", "TestFabricMissing", "TestForeignPeer", "TestUnknownNames", "TestStatsFileGone", "TestStatsFileNoFolder",
		"TestStatsFileNowhere", "TestTruncatedBlob", "TestNotifUnknown"},
	"is of standard error, whatever carries the bytes": {"TestStuckLog", "TestStatsToStuckOutput"},
}

// exactly is a pattern for -run.
func exactly(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }

// TestLists: every test of test/e2e is in one of the lists, and nothing else is.
func TestLists(t *testing.T) {
	c := exec.Command("go", "test", "-buildvcs=false", "-list", "^Test", "./test/e2e")
	c.Dir = testenv.Root()
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var there []string
	for _, line := range strings.Fields(string(out)) {
		if strings.HasPrefix(line, "Test") {
			there = append(there, line)
		}
	}
	listed := slices.Clone(most)
	for _, names := range leftOut {
		listed = append(listed, names...)
	}
	require.ElementsMatch(t, there, listed)
	for _, names := range [][]string{several, few, scenarios, onRXM} {
		require.Subset(t, most, names)
	}
}
