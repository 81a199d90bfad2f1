/* Pointer attributes, as the real driver returns them (H200, driver 580). */
#include "ct.h"

static cu_result attr(void *value, int attribute, cu_ptr ptr)
{
    ct_host *h = ct_host_at(ptr);
    ct_map *m = h ? NULL : ct_map_at(ptr);
    uint64_t start = h ? (uint64_t)h->at : m ? m->at : 0, size = h ? h->size : m ? m->size : 0;
    if (!h && !m && attribute != CU_PTR_TYPE && attribute != CU_PTR_MANAGED && attribute != CU_PTR_DEVICE && attribute != CU_PTR_BUFFER &&
        attribute != CU_PTR_START && attribute != CU_PTR_SIZE && attribute != CU_PTR_HANDLE_TYPES && attribute != CU_PTR_ACCESS)
        return CU_INVALID_VALUE;
    switch (attribute) {
    case CU_PTR_TYPE: *(unsigned *)value = h || (m && m->mem->gpu < 0) ? CU_TYPE_HOST : m ? CU_TYPE_DEVICE : 0; break;
    case CU_PTR_BUFFER: *(unsigned long long *)value = h ? h->id : m ? m->id : 0; break;
    case CU_PTR_MANAGED: *(unsigned *)value = m && m->kind == KIND_MANAGED; break;
    case CU_PTR_DEVICE: *(int *)value = h ? h->device : m ? m->device : -2; break;
    case CU_PTR_START:
        /* VMM memory: the start of the first of all handles that are mapped end to end. */
        for (ct_map *p; m && m->kind == KIND_VMM && (p = ct_map_at(start - 1)) && p->kind == KIND_VMM;)
            start = p->at;
        *(cu_ptr *)value = start;
        break;
    case CU_PTR_SIZE: *(size_t *)value = size; break;
    case CU_PTR_HANDLE_TYPES: *(unsigned long long *)value = m && m->kind == KIND_VMM ? (unsigned)m->mem->types : 0; break;
    case CU_PTR_ACCESS: /* of the current context's GPU */
        *(unsigned *)value = h || (m && m->kind != KIND_VMM) ? CU_ACCESS_READWRITE : m && ct_current() ? ct_access(m, ct_current()->device) : 0;
        break;
    case CU_PTR_POOL: *(void **)value = m && m->kind == KIND_POOL ? m : NULL; break;
    case CU_PTR_MAPPING_SIZE: *(size_t *)value = size; break;
    case CU_PTR_MAPPING_BASE: *(cu_ptr *)value = start; break;
    default: return CU_INVALID_VALUE;
    }
    return CU_OK;
}

cu_result cuPointerGetAttribute(void *value, int attribute, cu_ptr ptr)
{
    BEGIN(-1, NO_CTX);
    ct_count[CT_asked]++;
    END(attr(value, attribute, ptr));
}

cu_result cuPointerGetAttributes(unsigned count, int *attributes, void **values, cu_ptr ptr)
{
    BEGIN(CALL_PointerGetAttributes, NO_CTX);
    ct_count[CT_asked]++;
    cu_result r = CU_OK;
    for (unsigned i = 0; i < count && r == CU_OK; i++) {
        int of_mapping = attributes[i] == CU_PTR_MAPPING_BASE || attributes[i] == CU_PTR_MAPPING_SIZE;
        r = of_mapping && !ct_switch[SW_mappings] ? CU_INVALID_VALUE : attr(values[i], attributes[i], ptr);
    }
    END(r);
}
