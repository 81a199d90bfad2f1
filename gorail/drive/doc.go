// Package drive runs benchmarks: it starts processes with real NIXL agents, lets them move memory, and returns what was measured.
// gorail bench is a set of flags around it. Studies build on it the same way:
//
//	c := &drive.Config{
//		Subjects: []measure.Subject{{Title: "GORAIL", Backend: "GORAIL"}},
//		Points:   []measure.Point{{Op: "WRITE", Block: 4096, Batch: 1, Depth: 1, Threads: 1}},
//		Pace:     measure.Pace{Warmup: 10, Time: time.Second, Limit: time.Minute},
//		Repeats:  3, Sync: "none", Target: "polls", Notify: true, Check: true,
//		Wheel:    wheel, PluginDir: func(string) string { return dir },
//		Step:     func(what string) {}, Warn: func(subject string, why error) { log.Print(subject, why) },
//	}
//	results := c.Run(ctx)
//
// Input and output are plain structs: package measure has the points and the samples, package report makes tables and JSON of
// them. The program must call side.Main when it is started with the argument side.Command: the processes of a benchmark are that
// program.
//
// Each subject in turn gets processes of its own, several times a run. All subjects thus meet the same conditions of the machine,
// and no two run at the same time. Each has one initiator and one target.
//
// A point that fails has a sample with Failed; Warn tells at once. The processes of a failed point are ended, and the next point gets
// new ones. Processes that cannot be started end the turn. A cancelled Run returns what it has measured. A Config is not safe for
// concurrent use.
package drive
