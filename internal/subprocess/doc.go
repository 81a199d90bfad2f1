// Package subprocess starts this program again as a second process, gives it commands and ends it.
//
// Commands are net/rpc calls over one inherited descriptor, so what a plugin prints cannot disturb them. Each has a
// deadline, and a process that misses it is killed. Output has the end of what the process printed.
//
//	c, err := subprocess.Start(options, "Worker")               // in the first process
//	out, err := subprocess.Call[Out](c, "Do", args, time.Minute)
//	c.End(5 * time.Second)
//
//	subprocess.Serve("Worker", server)                          // in the second, until the first closes the connection
//
// A process on another host is reached over TCP: what runs there calls Exec with the connection, or with a listener that
// the process accepts its one connection from. The other host calls Connect.
package subprocess
