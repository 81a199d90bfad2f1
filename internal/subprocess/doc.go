// Package subprocess starts this program again as a second process, gives it commands and ends it.
//
// Commands are net/rpc calls over one inherited descriptor, so the output of a plugin cannot disturb them. Each command
// has a deadline; a process that misses it is killed. Output returns the end of the process's output.
//
//	c, err := subprocess.Start(options, "Worker")               // in the first process
//	out, err := subprocess.Call[Out](c, "Do", args, time.Minute)
//	c.End(5 * time.Second)
//
//	subprocess.Serve("Worker", server)                          // in the second, until the first closes the connection
//
// A process on another host is reached over TCP. A program there calls Exec with the connection, or with a listener
// from which the process accepts one connection. The other host calls Connect.
package subprocess
