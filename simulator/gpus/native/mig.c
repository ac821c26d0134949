/* GPUs cut into MIG instances. Every GPU instance holds one compute instance that spans it. */
#include "session.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned int *now, unsigned int *pending) {
    ENTER_DEVICE(handle, GPU_ONLY, now != NULL && pending != NULL);
    if (!device.identity.mig_capable) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *now = *pending = device.state.mig_count != 0;
    return NVML_SUCCESS;
}

/* Documented to be 0, not an error, where MIG is off or unknown. */
EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned int *count) {
    ENTER_DEVICE(handle, GPU_ONLY, count != NULL);
    *count = device.state.mig_count != 0 ? MAX_INSTANCES : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned int index,
                                                        nvmlDevice_t *instance) {
    ENTER_DEVICE(handle, GPU_ONLY, instance != NULL);
    if (!device.identity.mig_capable) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (index >= device.state.mig_count) {
        return NVML_ERROR_NOT_FOUND;
    }
    *instance = instance_handle(device.gpu, device.state.mig_generation, index);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t *parent) {
    ENTER_DEVICE(handle, MIG_ONLY, parent != NULL);
    *parent = gpu_handle(device.gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned int *is_instance) {
    ENTER_DEVICE(handle, ANY_DEVICE, is_instance != NULL);
    *is_instance = device.mig != NULL;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned int *id) {
    ENTER_DEVICE(handle, MIG_ONLY, id != NULL);
    *id = device.mig->gpu_instance_id;
    return NVML_SUCCESS;
}

/* A GPU instance's handle is its device's, under another type. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned int id, nvmlGpuInstance_t *instance) {
    ENTER_DEVICE(handle, GPU_ONLY, instance != NULL);
    for (unsigned int i = 0; i < device.state.mig_count; i++) {
        if (device.state.mig[i].gpu_instance_id == id) {
            *instance = (nvmlGpuInstance_t)instance_handle(device.gpu, device.state.mig_generation, i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    ENTER_DEVICE((nvmlDevice_t)instance, MIG_ONLY, info != NULL);
    *info = (nvmlGpuInstanceInfo_t){
        .device = gpu_handle(device.gpu),
        .id = device.mig->gpu_instance_id,
        .profileId = device.mig->profile_id,
        .placement = {.start = device.mig->start, .size = device.mig->size},
    };
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned int *id) {
    ENTER_DEVICE(handle, MIG_ONLY, id != NULL);
    *id = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes) {
    ENTER_DEVICE(handle, MIG_ONLY, attributes != NULL);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = device.mig->multiprocessors,
        .sharedCopyEngineCount = device.mig->copy_engines,
        .sharedDecoderCount = device.mig->decoders,
        .sharedJpegCount = device.mig->jpegs,
        .sharedOfaCount = device.mig->ofas,
        .gpuInstanceSliceCount = device.mig->slices,
        .computeInstanceSliceCount = device.mig->slices,
        .memorySizeMB = device.mig->memory_bytes >> 20,
    };
    return NVML_SUCCESS;
}
