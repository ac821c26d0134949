/* Which processes hold a context on a device. A MIG handle sees its own, its parent sees all. */
#include "session.h"

static bool on_device(const struct gpu_process *process, const struct device *device) {
    return device->mig == NULL || process->instance == device->instance;
}

static nvmlProcessInfo_t describe(const struct gpu_process *process, const struct device *device) {
    bool whole = process->instance == WHOLE_GPU;
    return (nvmlProcessInfo_t){
        .pid = process->pid,
        .usedGpuMemory = process->memory_used_bytes,
        .gpuInstanceId = whole ? NVML_NO_INSTANCE : device->state.mig[process->instance].gpu_instance_id,
        .computeInstanceId = whole ? NVML_NO_INSTANCE : 0,
    };
}

/* `count` holds the room in `infos`, then how many there are. */
static nvmlReturn_t list_processes(const struct device *device, enum process_kind kind, unsigned int *count,
                                   nvmlProcessInfo_t *infos) {
    struct process_list list;
    nvmlReturn_t status = read_processes(device->gpu, &list);
    if (status != NVML_SUCCESS) {
        return status;
    }
    unsigned int found = 0;
    for (uint64_t i = 0; i < list.count; i++) {
        const struct gpu_process *process = &list.process[i];
        if (process->kind == (uint32_t)kind && on_device(process, device)) {
            if (infos != NULL && found < *count) {
                infos[found] = describe(process, device);
            }
            found++;
        }
    }
    bool fits = found <= *count;
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                            nvmlProcessInfo_t *infos) {
    ENTER_DEVICE(handle, ANY_DEVICE, count != NULL && (infos != NULL || *count == 0));
    return list_processes(&device, PROCESS_COMPUTE, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                             nvmlProcessInfo_t *infos) {
    ENTER_DEVICE(handle, ANY_DEVICE, count != NULL && (infos != NULL || *count == 0));
    return list_processes(&device, PROCESS_GRAPHICS, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned int *count,
                                                               nvmlProcessInfo_t *infos) {
    ENTER_DEVICE(handle, ANY_DEVICE, count != NULL && (infos != NULL || *count == 0));
    return list_processes(&device, PROCESS_MPS, count, infos);
}
