/*
 * The buffers in which a card keeps its recent past: utilization of the whole, and of each process. Documented: neither
 * is available on a GPU with MIG enabled. Samples are those newer than what the caller has seen, oldest first.
 */
#include <stdlib.h>

#include "session.h"

/* Fails as both functions do where there is nothing to read: under MIG, or on a card that keeps no samples. */
static nvmlReturn_t read_utilization(const struct device *device, struct utilization_buffer *buffer) {
    if (device->state.mig_count != 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    nvmlReturn_t status = read_utilization_samples(device->gpu, buffer);
    return status == NVML_SUCCESS && !buffer->supported ? NVML_ERROR_NOT_SUPPORTED : status;
}

/* `count` holds the room in `samples`, then how many there are; without `samples` the caller only asks for that. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, unsigned int type, unsigned long long seen_us,
                                         unsigned int *value_type, unsigned int *count, nvmlSample_t *samples) {
    ENTER_DEVICE(handle, GPU_ONLY, value_type != NULL && count != NULL);
    struct utilization_buffer buffer;
    nvmlReturn_t status = read_utilization(&device, &buffer);
    if (status != NVML_SUCCESS || type != NVML_GPU_UTILIZATION_SAMPLES) {
        return status != NVML_SUCCESS ? status : NVML_ERROR_NOT_SUPPORTED;
    }
    uint64_t first = 0;
    while (first < buffer.count && buffer.sample[first].at_us <= seen_us) {
        first++;
    }
    unsigned int found = (unsigned int)(buffer.count - first);
    bool fits = samples == NULL || found <= *count;
    *value_type = NVML_VALUE_UNSIGNED_INT;
    *count = found;
    for (unsigned int i = 0; samples != NULL && fits && i < found; i++) {
        const struct utilization_sample *sample = &buffer.sample[first + i];
        samples[i] = (nvmlSample_t){.timeStamp = sample->at_us, .sampleValue.uiVal = (unsigned int)sample->percent};
    }
    return found == 0 ? NVML_ERROR_NOT_FOUND : fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The samples of processes newer than `seen_us`, for the caller to free: `*first` of `*count`. */
static nvmlReturn_t recent_of_processes(const struct device *device, unsigned long long seen_us,
                                        struct process_buffer **buffer, uint64_t *first) {
    struct utilization_buffer whole;
    nvmlReturn_t status = read_utilization(device, &whole);
    if (status != NVML_SUCCESS) {
        return status;
    }
    *buffer = malloc(sizeof **buffer); /* too large for a small thread's stack */
    if (*buffer == NULL) {
        return NVML_ERROR_MEMORY;
    }
    status = read_process_samples(device->gpu, *buffer);
    *first = 0;
    while (status == NVML_SUCCESS && *first < (*buffer)->count && (*buffer)->sample[*first].at_us <= seen_us) {
        ++*first;
    }
    if (status == NVML_SUCCESS && *first == (*buffer)->count) {
        status = NVML_ERROR_NOT_FOUND;
    }
    if (status != NVML_SUCCESS) {
        free(*buffer);
    }
    return status;
}

/* `count` holds the room in `samples`, then how many there are; asking with no room fails with INSUFFICIENT_SIZE. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned int *count, unsigned long long seen_us) {
    ENTER_DEVICE(handle, GPU_ONLY, count != NULL && (samples != NULL || *count == 0));
    struct process_buffer *buffer;
    uint64_t first;
    nvmlReturn_t status = recent_of_processes(&device, seen_us, &buffer, &first);
    if (status != NVML_SUCCESS) {
        return status;
    }
    unsigned int found = (unsigned int)(buffer->count - first);
    bool fits = found <= *count;
    *count = found;
    for (unsigned int i = 0; fits && i < found; i++) {
        const struct process_sample *sample = &buffer->sample[first + i];
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = sample->pid,
            .timeStamp = sample->at_us,
            .smUtil = sample->sm_percent,
            .memUtil = sample->memory_percent,
            .encUtil = sample->encoder_percent,
            .decUtil = sample->decoder_percent,
        };
    }
    free(buffer);
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* The same in a structure that says its version. JPEG engines and optical flow do nothing here. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_t *info) {
    ENTER_DEVICE(handle, GPU_ONLY, info != NULL && (info->procUtilArray != NULL || info->processSamplesCount == 0));
    if (info->version != NVML_VERSION_OF(nvmlProcessesUtilizationInfo_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    struct process_buffer *buffer;
    uint64_t first;
    nvmlReturn_t status = recent_of_processes(&device, info->lastSeenTimeStamp, &buffer, &first);
    if (status != NVML_SUCCESS) {
        return status;
    }
    unsigned int found = (unsigned int)(buffer->count - first);
    bool fits = found <= info->processSamplesCount;
    info->processSamplesCount = found;
    for (unsigned int i = 0; fits && i < found; i++) {
        const struct process_sample *sample = &buffer->sample[first + i];
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_t){
            .timeStamp = sample->at_us,
            .pid = sample->pid,
            .smUtil = sample->sm_percent,
            .memUtil = sample->memory_percent,
            .encUtil = sample->encoder_percent,
            .decUtil = sample->decoder_percent,
        };
    }
    free(buffer);
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
