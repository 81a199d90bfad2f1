/* Maps libfabric's error codes to errno. C, because completions and refused posts carry them. */
#include <errno.h>
#include <rdma/fi_errno.h>

#include "ofi.h"

int ofi_errno(long rc)
{
    static const int own[] = {
        [0] = EIO,              /* FI_EOTHER */
        [1] = EMSGSIZE,         /* FI_ETOOSMALL */
        [2] = EINVAL,           /* FI_EOPBADSTATE */
        [3] = EIO,              /* FI_EAVAIL */
        [4] = EINVAL,           /* FI_EBADFLAGS */
        [5] = EINVAL,           /* FI_ENOEQ */
        [6] = EINVAL,           /* FI_EDOMAIN */
        [7] = EINVAL,           /* FI_ENOCQ */
        [8] = EBADMSG,          /* FI_ECRC */
        [9] = EMSGSIZE,         /* FI_ETRUNC */
        [10] = ENOKEY,          /* FI_ENOKEY */
        [11] = EINVAL,          /* FI_ENOAV */
        [12] = EOVERFLOW,       /* FI_EOVERRUN */
        [13] = ENOBUFS,         /* FI_ENORX */
        [14] = ENOMEM,          /* FI_ENOMR, 2.x */
        [15] = EHOSTUNREACH,    /* FI_EFIREWALLADDR, 2.x */
    };
    long code = -rc;
    if (rc >= 0)
        return 0;
    if (code < FI_ERRNO_OFFSET)
        return (int)rc;
    code -= FI_ERRNO_OFFSET;
    return code < (long)(sizeof(own) / sizeof(own[0])) ? -own[code] : -EIO;
}
