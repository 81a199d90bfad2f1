package rail

import "gorail/backend/provider"

// Shards adds the further shards of the devices: all second ones, then all third ones, and so on, until there are `most` rails.
func Shards(devices []provider.Device, most int) []provider.Device {
	out := devices
	for shard, more := 1, true; more; shard++ {
		more = false
		for _, d := range devices {
			if shard < d.Shards && len(out) < most {
				d.Shard = shard
				out = append(out, d)
				more = true
			}
		}
	}
	return out
}
