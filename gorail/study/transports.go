package study

import "gorail/gorail/study/transports"

func transportsStudy() *study {
	return &study{
		name:  "transports",
		short: "Transports: tcp against what else is there (verbs, EFA, CXI, shared memory), alone and beside a load",
		long: `Measures each fabric of GORAIL between the same pair of processes: latency, rate, CPU seconds a GiB, the time to the first byte, and what a
load on every core leaves. Beside them are UCX and a plain TCP connection.`,
		example: "  gorail study transports --quick\n  gorail doctor --listen other:18516        # on one host; it prints a token. On the other host:\n  GORAIL_PEER_TOKEN=TOKEN gorail study transports --peer other:18516",
		title:   "Transports",
		asked:   "What does another transport than tcp gain between these two processes?",
		peer:    true,
		run:     transports.Run,
	}
}
