// Package rails holds the devices that an engine has opened: their registration caches and keys, the rails that wait for
// their device and join later, and the log lines about them. Choose chooses the devices.
//
// # NUMA
//
// If rails are on several NUMA nodes, registration asks for the node of the region. The call is move_pages and takes
// 1.3 us. The answer is -1 if the memory is untouched or on several nodes, or if a container forbids the question.
//
//   - Links over rails of that node come first. The others count double when a link is chosen.
//   - A small transfer goes to a near link unless that link has twice as much to do. A large transfer goes to all
//     links.
//   - For a GPU's memory, the near rails are those nearest to the GPU on the PCI bus.
//   - Measured rates take the place of link speeds once every link has been measured at the limit of its window.
//
// # Late rails
//
// A network interface or RDMA port may be down when the engine is made. It becomes a late rail if a rail of its fabric
// is open and max_rails leaves room. A device without an address must be named by devices.
//
//   - Peers find the late rail in the connection blob. The core reserves its index. The control channel listens on its
//     address already (IP_FREEBIND).
//   - An RDMA port's state is checked every two seconds.
//   - When the device comes up, it is opened and all host memory is registered on it. GPU memory that is registered
//     already stays without the rail.
//   - Then sessions start its links by a FENCE, and initiators ask for the keys that they lack (rails/late.go,
//     rails/join.go, session/initiator_links.go).
//   - A transfer in progress stays on its links.
//
// # Wide machines
//
// If the best class of devices has more than max_rails, all are rails, and most are opened on demand (wide.go). Ranks of a host share them out
// (shares.go).
//
// A device that is down when the engine is made is a late rail, too, and is opened on demand after it has come up (wide_join.go). Memory that is
// registered then may be on it. Host memory of before is on it if it is near to the process, or if no rail of that memory works. Transfers whose
// links move nothing start again when another link of their memory works (transfer/reach.go).
//
// # Regions
//
// Nearest chooses the rails on which a region of memory is registered (near.go). It is pure. Paths gives it the places of devices, and Share the
// part of each device that one of the ranks of a host should use.
//
// Choose decides which devices become rails, from facts of package topo. Match pairs our rails with the
// peer's: by fabric, subnet and shard, then by number. Shards that the peer lacks stay alone (rails/choose.go makes
// them).
package rails
