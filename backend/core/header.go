package core

// #include "msg_wire.h"
import "C"

import (
	"unsafe"

	"gorail/backend/wire"
)

// The core writes and reads message headers as C lays them out; package wire describes the same bytes. Another layout does
// not compile, and TestHostileMessages finds another reading.
var (
	_ [0]struct{} = [unsafe.Sizeof(C.header{}) - wire.HeaderSize]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.magic) - wire.OffMagic]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.version) - wire.OffVersion]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.kind) - wire.OffKind]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.parts) - wire.OffParts]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.part) - wire.OffPart]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.seq) - wire.OffSeq]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.total) - wire.OffTotal]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.offset) - wire.OffOffset]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.count) - wire.OffCount]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.sum) - wire.OffSum]struct{}{}
	_ [0]struct{} = [unsafe.Offsetof(C.header{}.to) - wire.OffTo]struct{}{}
	_ [0]struct{} = [C.KIND_PROBE - wire.KindProbe]struct{}{}
	_ [0]struct{} = [C.KIND_SKIP - wire.KindSkip]struct{}{}
	_ [0]struct{} = [C.MAGIC - wire.Magic]struct{}{}
	_ [0]struct{} = [C.VERSION - wire.HeaderVersion]struct{}{}
)
