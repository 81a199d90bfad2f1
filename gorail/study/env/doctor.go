package env

import (
	"fmt"
	"os"
	"slices"

	"gorail/backend/option"
	"gorail/gorail/doctor"
	"gorail/gorail/result"
)

// TakeChecks copies doctor's checks of some areas, and what failed elsewhere.
func TakeChecks(report *doctor.Report, areas []string, r *result.Result) {
	for _, c := range report.Checks {
		if slices.Contains(areas, c.Area) || c.Status == doctor.Fail {
			r.Checks = append(r.Checks, result.Check{Status: string(c.Status), What: c.ID, Text: c.Text, Remedy: c.Remedy})
		}
	}
}

// Rails are the rails that an engine on this host would have, with the options of the environment.
func Rails(host *doctor.Host) (doctor.Rails, error) {
	opt, _, err := option.Parse(nil, os.LookupEnv)
	if err != nil {
		return doctor.Rails{}, err
	}
	rails, err := host.Try.Rails(opt)
	if err != nil {
		return doctor.Rails{}, fmt.Errorf("no rails: %w; gorail doctor says more", err)
	}
	return rails, nil
}
