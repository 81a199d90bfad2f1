// GorailEngine: transfers and notifications. Only prep, first posts, release, estimate and genNotif enter Go, once
// each.
#include "flat.h"
#include "guard.h"

using namespace gorail;

namespace {

Request *request(nixlBackendReqH *handle) noexcept { return static_cast<Request *>(handle); }

} // namespace

// The request is set only on success, so the agent never gets a handle that Go does not know.
nixl_status_t GorailEngine::prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                                     const std::string &peer, nixlBackendReqH *&handle, const nixlBackendOptionalArgs *) const
{
    if (waits())
        return refuse("prepXfer", why_unusable());
    handle = nullptr;
    return enter_go(GR_CROSS_PREP, [&] {
        gr_prep_args args = {static_cast<int32_t>(op), flat(local), local.size(), flat(remote), remote.size(), borrow(peer)};
        gr_prepped made = {};
        const int32_t rc = gorail_prep(state_->engine, &args, &made);
        if (rc != GR_SUCCESS)
            return rc;
        Undo undo([&] { gorail_release(state_->engine, made.xfer); });
        handle = state_->requests.add(made);
        undo.dismiss();
        return rc;
    });
}

// The lists are those of prepXfer, and the plan exists. Only the notification is new with each post. A repeated post
// does not enter Go unless the state has changed since the last post.
nixl_status_t GorailEngine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                                     nixlBackendReqH *&handle, const nixlBackendOptionalArgs *args) const
{
    if (!usable())
        return refuse("postXfer", why_unusable());
    if (!handle)
        return refuse("postXfer", GR_REFUSED_NULL);
    const Request *req = request(handle);
    gr_notif_args notif = {};
    if (args && args->hasNotif) {
        notif.has = 1;
        notif.msg = borrow(args->notifMsg);
    }
    const int rc = gr_repost(state_->core, req->slot, req->xfer, notif.has, notif.msg.ptr, notif.msg.len);
    if (rc != GR_NOT_TAKEN)
        return static_cast<nixl_status_t>(rc);
    return enter_go(GR_CROSS_POST, [&] { return gorail_post(state_->engine, req->xfer, &notif); });
}

nixl_status_t GorailEngine::checkXfer(nixlBackendReqH *handle) const
{
    if (!usable())
        return refuse("checkXfer", why_unusable());
    if (!handle)
        return refuse("checkXfer", GR_REFUSED_NULL);
    const Request *req = request(handle);
    return static_cast<nixl_status_t>(gr_check(state_->core, req->slot, req->xfer));
}

// A READ that could still write to local memory is refused once. The agent then keeps the handle, and its next release
// is final. For other transfers Go drains the work in flight, and the agent may forget the handle.
nixl_status_t GorailEngine::releaseReqH(nixlBackendReqH *handle) const
{
    return enter_go(GR_CROSS_OTHER, [&]() -> int32_t {
        const Request *req = state_->requests.find(handle);
        if (!req)
            return refuse("releaseReqH", GR_REFUSED_REQUEST);
        if (gorail_release(state_->engine, req->xfer) == GR_ERR_REPOST_ACTIVE)
            return GR_ERR_REPOST_ACTIVE;
        state_->requests.take(handle);
        return GR_SUCCESS;
    });
}

nixl_status_t GorailEngine::estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                                             nixlBackendReqH *const &handle, std::chrono::microseconds &duration, std::chrono::microseconds &margin,
                                             nixl_cost_t &method, const nixlAgentOptionalArgs *) const
{
    if (waits())
        return refuse("estimateXferCost", why_unusable());
    duration = margin = std::chrono::microseconds(0);
    method = nixl_cost_t::ANALYTICAL_BACKEND;
    if (!handle)
        return refuse("estimateXferCost", GR_REFUSED_NULL);
    return enter_go(GR_CROSS_OTHER, [&] {
        gr_estimate est = {};
        const int32_t rc = gorail_estimate(state_->engine, request(handle)->xfer, &est);
        duration = std::chrono::microseconds(est.duration_us);
        margin = std::chrono::microseconds(est.margin_us);
        return rc;
    });
}

nixl_status_t GorailEngine::getNotifs(notif_list_t &list)
{
    if (!usable())
        return refuse("getNotifs", why_unusable());
    gr_notif *first = gr_notif_take(state_->core);
    if (!first)
        return NIXL_SUCCESS;
    const auto rc = guard([&] {
        for (const gr_notif *n = first; n; n = n->next)
            list.emplace_back(std::string(n->name, n->name_len), std::string(n->msg, n->msg_len));
        return GR_SUCCESS;
    });
    gr_notif_free(state_->core, first);
    return rc;
}

nixl_status_t GorailEngine::genNotif(const std::string &peer, const std::string &msg) const
{
    return enter_go(GR_CROSS_OTHER, [&] {
        gr_bytes name = borrow(peer);
        gr_bytes body = borrow(msg);
        return gorail_notify(state_->engine, &name, &body);
    });
}

nixl_status_t GorailEngine::prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &, const nixlBackendOptionalArgs *) const
{
    return refuse("prepMemView", GR_REFUSED_VIEW);
}

nixl_status_t GorailEngine::prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &, const nixlBackendOptionalArgs *) const
{
    return refuse("prepMemView", GR_REFUSED_VIEW);
}
