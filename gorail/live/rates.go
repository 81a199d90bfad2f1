package live

import "gorail/backend/stats"

// Rates are bytes per second of one thing between two snapshots.
type Rates struct {
	Written, Read float64
	Operations    float64 // transfers per second; of engines only
	ForPeers      float64 // what this process copied of peers' WRITEs and READs; of engines only
}

// Delta has the rates between two snapshots of one engine.
type Delta struct {
	Engine Rates
	Rails  map[string]Rates // by rail name
}

// Between computes the rates from before to now. It is zero if before is nil or of another engine.
func Between(before, now *stats.Live) Delta {
	d := Delta{Rails: map[string]Rates{}}
	if before == nil || !before.Started.Equal(now.Started) {
		return d
	}
	seconds := now.Now.Sub(before.Now).Seconds()
	if seconds <= 0 {
		return d
	}
	rate := func(old, now stats.Counts) Rates {
		return Rates{Written: grown(old.BytesWritten, now.BytesWritten) / seconds, Read: grown(old.BytesRead, now.BytesRead) / seconds}
	}
	rails := map[string]stats.Rail{}
	for _, r := range before.Rails {
		rails[r.Name] = r
	}
	for _, r := range now.Rails {
		one := rate(rails[r.Name].Counts, r.Counts)
		d.Engine.ForPeers += grown(rails[r.Name].ForPeers, r.ForPeers) / seconds
		d.Rails[r.Name] = one
		d.Engine.Written += one.Written
		d.Engine.Read += one.Read
	}
	d.Engine.Operations = grown(before.Core["transfers_done"], now.Core["transfers_done"]) / seconds
	return d
}

// grown is the growth of a counter.
func grown(before, now uint64) float64 {
	if now < before {
		return 0
	}
	return float64(now - before)
}
