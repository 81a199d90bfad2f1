package study

import "gorail/gorail/study/small"

func smallStudy() *study {
	return &study{
		name:  "small",
		short: "Small messages: operations a second and tail latency by size, threads and agents, beside UCX",
		long: `Moves 64 B to 64 KiB with 1 to 4 threads, 1 and 4 agents, one and 16 transfers in flight. GORAIL takes its own way between two processes,
then tcp alone; the wheel's UCX takes its own way. Each takes turns in processes of its own.`,
		example: "  gorail study small\n  gorail study small --quick --output html=small.html,md=-\n  GORAIL_PEER_TOKEN=TOKEN gorail study small --peer other:18516",
		title:   "Small messages",
		asked:   "How many small messages a second does a machine move, how long do the slowest take, and what do threads and agents change?",
		peer:    true,
		run:     small.Run,
	}
}
