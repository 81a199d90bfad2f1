package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorail/backend/topo"
)

// faults are counters that a good link does not move. congestion are those that a busy network moves.
var (
	faults = []string{"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
		"rx_crc_errors", "rx_frame_errors", "rx_errors", "tx_errors", "tx_carrier_errors", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "out_of_sequence", "rx_icrc_encapsulated"}
	congestion = []string{"np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "rnr_nak_retry_err", "out_of_buffer", "port_xmit_discards", "rx_dropped", "rx_missed_errors",
		"roce_adp_retrans", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events"}
)

// folders lists the folders with counters.
func (s *checker) folders() (out []string) {
	for _, r := range s.machine.RDMA {
		dir := "class/" + r.Class + "/" + r.Name
		out = append(out, dir+"/hw_counters")
		for _, port := range names(s.Sys, dir+"/ports") {
			out = append(out, dir+"/ports/"+port+"/counters", dir+"/ports/"+port+"/hw_counters")
		}
	}
	for _, n := range s.machine.Nets() {
		if !n.Loopback && (s.used(n.Name) || s.machine.RDMAOf(n.Name) != nil) {
			out = append(out, "class/net/"+n.Name+"/statistics")
		}
	}
	return out
}

// counted is a counter's file and value.
func (s *checker) counted(folders []string) map[string]uint64 {
	all := map[string]uint64{}
	for _, dir := range folders {
		for _, name := range slices.Concat(faults, congestion) {
			if v, err := strconv.ParseUint(topo.Word(s.Sys, dir+"/"+name), 10, 64); err == nil {
				all[dir+"/"+name] = v
			}
		}
	}
	return all
}

// firstLook reads the counters. Old errors may have had their cause long ago, so a second look decides.
func (s *checker) firstLook() { s.seen, s.seenAt = s.counted(s.folders()), time.Now() }

func (s *checker) secondLook() {
	if s.Second == nil {
		return
	}
	if len(s.seen) == 0 {
		s.Pass("errors", "no counters here")
		return
	}
	s.Second(s.seenAt)
	after := s.counted(s.folders())
	s.grown("errors", faults, s.seen, after, "check cable, optics and switch port; on RoCE check for lost packets")
	s.grown("congestion", congestion, s.seen, after, "check PFC and ECN of switches and cards, and who else uses the network")
}

func (s *checker) grown(id string, list []string, before, after map[string]uint64, remedy string) {
	var grew []string
	n := 0
	for file, old := range before {
		name := file[strings.LastIndexByte(file, '/')+1:]
		if !slices.Contains(list, name) {
			continue
		}
		n++
		if now := after[file]; now > old {
			device := strings.Split(file, "/")[2]
			grew = append(grew, fmt.Sprintf("%s %s +%d", device, name, now-old))
		}
	}
	if slices.Sort(grew); len(grew) > 0 {
		s.Warn(id, "grew within a second: "+strings.Join(grew, ", "), remedy)
		return
	}
	s.Pass(id, "%d counters stand still", n)
}
