package worker

import "time"

// Eventually polls cond until it holds. It returns false when the time is up.
func Eventually(timeout time.Duration, cond func() bool) bool {
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return true
		}
	}
	return cond()
}
