/* How GPUs are connected: one half of a node's GPUs on each of two sockets; NVLink where both cards have links. */
#include "session.h"

enum { SOCKETS = 2 };

static unsigned int socket_of(const struct device *device, const struct board_header *node) {
    return device->gpu * SOCKETS / node->gpu_count;
}

static bool has_link(const struct device *device, unsigned int link) {
    uint64_t value[MAX_VALUES];
    return read_answer(device->gpu, "nvmlDeviceGetNvLinkState", link, value) == NVML_SUCCESS;
}

/* Opens the second device of a question about two. */
#define ENTER_OTHER(handle)                                                           \
    struct device other;                                                              \
    do {                                                                              \
        nvmlReturn_t entered = enter_device(__func__, handle, GPU_ONLY, true, &other); \
        if (entered != NVML_SUCCESS) {                                                \
            return entered;                                                           \
        }                                                                             \
    } while (0)

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned int *level) {
    ENTER_NODE(level != NULL);
    ENTER_DEVICE(first, GPU_ONLY, true);
    ENTER_OTHER(second);
    if (device.gpu == other.gpu) {
        *level = NVML_TOPOLOGY_INTERNAL;
    } else {
        bool same = socket_of(&device, &node) == socket_of(&other, &node);
        *level = same ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned int capability,
                                           unsigned int *status) {
    ENTER_DEVICE(first, GPU_ONLY, status != NULL);
    ENTER_OTHER(second);
    bool linked = capability == NVML_P2P_CAPS_NVLINK && has_link(&device, 0) && has_link(&other, 0);
    *status = linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned int link, unsigned int *active) {
    ENTER_DEVICE(handle, GPU_ONLY, active != NULL);
    uint64_t value[MAX_VALUES];
    nvmlReturn_t status = read_answer(device.gpu, __func__, link, value);
    if (status == NVML_SUCCESS) {
        *active = (unsigned int)value[0];
    }
    return status;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned int size, unsigned long *nodes,
                                                unsigned int scope) {
    ENTER_NODE(nodes != NULL && size > 0);
    ENTER_DEVICE(handle, ANY_DEVICE, true);
    (void)scope;
    for (unsigned int i = 0; i < size; i++) {
        nodes[i] = 0;
    }
    nodes[0] = 1ul << socket_of(&device, &node);
    return NVML_SUCCESS;
}

/* Nothing of a fabric unless the board states it: state, status, clique and health mask; then summary and half a UUID. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle, nvmlGpuFabricInfoV_t *info) {
    ENTER_DEVICE(handle, GPU_ONLY, info != NULL);
    uint64_t value[MAX_VALUES];
    uint64_t more[MAX_VALUES];
    if (info->version != NVML_GPU_FABRIC_INFO_V3) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    bool is_stated = read_answer(device.gpu, __func__, 0, value) == NVML_SUCCESS &&
                     read_answer(device.gpu, __func__, 1, more) == NVML_SUCCESS;
    *info = (nvmlGpuFabricInfoV_t){.version = info->version};
    if (is_stated) {
        info->state = (unsigned char)value[0];
        info->status = (nvmlReturn_t)value[1];
        info->cliqueId = (unsigned int)value[2];
        info->healthMask = (unsigned int)value[3];
        info->healthSummary = (unsigned char)more[0];
        info->clusterUuid[0] = (unsigned char)more[1];
    }
    return NVML_SUCCESS;
}
