package drive

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// ReachEtcd checks that an etcd server answers. NIXL's agents would wait for it a long time, also at their end.
func ReachEtcd(url string) error {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") || strings.Contains(url, ",") {
		return fmt.Errorf("%q: want one URL, such as http://127.0.0.1:2379", url)
	}
	c := http.Client{Timeout: 5 * time.Second}
	answer, err := c.Get(strings.TrimSuffix(url, "/") + "/version")
	if err != nil {
		return fmt.Errorf("no etcd server answers: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s to a request for its version: not an etcd server", url, answer.Status)
	}
	return nil
}
