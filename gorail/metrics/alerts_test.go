package metrics

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/live"
	"gorail/test/skip"
)

const deployed = "../../examples/deploy"

// The alert rules ask only for what the exporter has, and each fires in its case of prometheus-rules-test.yaml.
func TestAlerts(t *testing.T) {
	folder, engine := t.TempDir(), snapshot("ann", 1)
	for _, n := range ofControl {
		engine.Control.(map[string]any)[n.key] = 1
	}
	serve(t, folder, "1", engine)
	x := export(scrape(t, handler(t, &Collector{Source: live.Source{Folder: folder}})))
	rules, err := os.ReadFile(filepath.Join(deployed, "prometheus-rules.yaml"))
	require.NoError(t, err)
	exprs := regexp.MustCompile(`(?m)^ +expr: (.*)$`).FindAllStringSubmatch(string(rules), -1)
	require.Len(t, exprs, strings.Count(string(rules), "- alert: "))
	for _, e := range exprs {
		require.Empty(t, x.check(e[1]), e[1])
	}
	out, err := exec.Command(skip.Unpacked(t, "prometheus", "promtool"), "test", "rules", filepath.Join(deployed, "prometheus-rules-test.yaml")).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestAlertsLoaded: a real Prometheus scrapes the exporter, evaluates all rules without an error, and those of the engine's state fire.
func TestAlertsLoaded(t *testing.T) {
	folder := t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	exporter := httptest.NewServer(handler(t, &Collector{Source: live.Source{Folder: folder}}))
	defer exporter.Close()
	rules, err := filepath.Abs(filepath.Join(deployed, "prometheus-rules.yaml"))
	require.NoError(t, err)
	at := free(t)
	config := filepath.Join(folder, "prometheus.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\nrule_files: [%s]\n"+
		"scrape_configs: [{job_name: gorail, static_configs: [{targets: [%q]}]}]\n", rules, strings.TrimPrefix(exporter.URL, "http://")), 0o600))
	server := exec.Command(skip.Unpacked(t, "prometheus", "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+at)
	log, err := os.Create(filepath.Join(folder, "log"))
	require.NoError(t, err)
	server.Stdout, server.Stderr = log, log
	require.NoError(t, server.Start())
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	type rule struct{ Name, Health, State, LastError string }
	var all []rule
	require.Eventually(t, func() bool {
		var said struct {
			Data struct{ Groups []struct{ Rules []rule } }
		}
		if get("http://"+at+"/api/v1/rules", &said) != nil || len(said.Data.Groups) == 0 {
			return false
		}
		all = said.Data.Groups[0].Rules
		for _, r := range all {
			if r.Health != "ok" || r.Name == "GorailRailDown" && r.State == "inactive" { // the rail of the snapshot is degraded: 5 minutes later it fires
				return false
			}
		}
		return len(all) > 0
	}, time.Minute, 100*time.Millisecond, "%v", &all)
}

func get(url string, into any) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	return json.NewDecoder(r.Body).Decode(into)
}

// free returns an address of the loopback with a port that was free.
func free(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
