/*
 * Events: what the board's log has gained since a set was first told of a GPU. A program that waits polls the board, as
 * there is no kernel to wake it.
 */
#include <stdlib.h>
#include <time.h>

#include "session.h"

enum { POLL_MS = 100 }; /* a real driver waits in the kernel: what polling costs is not the waiting program's */

struct nvml_event_set {
    uint64_t seen; /* how many of the board's events have been looked at */
    uint64_t types[MAX_GPUS];
};

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types) {
    ENTER_DEVICE(handle, GPU_ONLY, types != NULL);
    *types = NVML_EVENT_XID;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    ENTER_NODE(set != NULL);
    struct event_log log;
    nvmlReturn_t status = read_events(&log);
    if (status != NVML_SUCCESS) {
        return status;
    }
    *set = calloc(1, sizeof **set);
    if (*set == NULL) {
        return NVML_ERROR_MEMORY;
    }
    (*set)->seen = log.count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    ENTER_NODE(set != NULL);
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types, nvmlEventSet_t set) {
    ENTER_DEVICE(handle, GPU_ONLY, set != NULL);
    if ((types & ~(unsigned long long)NVML_EVENT_XID) != 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    set->types[device.gpu] |= types;
    return NVML_SUCCESS;
}

/* The next event of the set, if there is one; what the log has overwritten meanwhile is lost. */
static bool next(nvmlEventSet_t set, const struct event_log *log, nvmlEventData_t *data) {
    if (log->count > set->seen + MAX_EVENTS) {
        set->seen = log->count - MAX_EVENTS;
    }
    while (set->seen < log->count) {
        const struct gpu_event *event = &log->event[set->seen++ % MAX_EVENTS];
        if (set->types[event->gpu] & NVML_EVENT_XID) {
            *data = (nvmlEventData_t){
                .device = gpu_handle(event->gpu),
                .eventType = NVML_EVENT_XID,
                .eventData = event->xid,
                .gpuInstanceId = event->gpu_instance_id,
                .computeInstanceId = event->gpu_instance_id == NVML_NO_INSTANCE ? NVML_NO_INSTANCE : 0,
            };
            return true;
        }
    }
    return false;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
    ENTER_NODE(set != NULL && data != NULL);
    long long until = now_ms() + timeout_ms;
    for (;;) {
        struct event_log log;
        nvmlReturn_t status = read_events(&log);
        if (status != NVML_SUCCESS) {
            return status;
        }
        if (next(set, &log, data)) {
            return NVML_SUCCESS;
        }
        long long left = until - now_ms();
        if (left <= 0) {
            return NVML_ERROR_TIMEOUT;
        }
        nanosleep(&(struct timespec){.tv_nsec = (left < POLL_MS ? left : POLL_MS) * 1000000}, NULL);
    }
}
