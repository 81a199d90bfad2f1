package study

import "gorail/gorail/study/rails"

func railsStudy() *study {
	return &study{
		name:  "rails",
		short: "Rails: each alone and all together, beside what the links should give, and beside UCX",
		long: `Checks every link first (speed, width, what caps it), then measures each rail alone and all rails: WRITE and READ, host memory and
each GPU, 4 KiB to 1 GiB, beside what the links should give and what UCX gives. It says in words what limits.`,
		example: "  gorail study rails --quick\n  gorail doctor --listen other:18516        # on one host; it prints a token. On the other host:\n  GORAIL_PEER_TOKEN=TOKEN gorail study rails --peer other:18516",
		title:   "Rails",
		asked:   "What does each rail give, what do all of them give together, and what limits them?",
		peer:    true,
		run:     rails.Run,
	}
}
