#pragma once

namespace gorail {

// Go's runtime ends the process when it gets no thread, or no addresses. So it gets both from a reserve that is made before it starts. It also
// ends the process when the system refuses some calls. So they are tried before.

// Makes the reserve. Call it before the constructor of Go's half, with all signals blocked.
void room_before_go() noexcept;

// Why Go was not started, in words that name the limit or the call; null: it was. Constant after room_before_go.
const char *no_room() noexcept;

// Refills the reserve. Null, or why that failed, valid until the thread's next call. An engine must not start then: Go may need threads at any later moment.
const char *room_for_engine() noexcept;

} // namespace gorail
