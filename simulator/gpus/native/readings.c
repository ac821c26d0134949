/* What a device measures. Power, temperature and clocks are the card's: a MIG instance has none of its own. */
#include <time.h>

#include "session.h"

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates) {
    ENTER_DEVICE(handle, GPU_ONLY, rates != NULL);
    if (device.state.mig_count != 0) {
        return NVML_ERROR_NOT_SUPPORTED; /* documented: not available on a GPU with MIG enabled */
    }
    rates->gpu = device.state.gpu_util_percent;
    rates->memory = device.state.memory_util_percent;
    return NVML_SUCCESS;
}

/* As of the second version of the call: total = free + used + reserved. A MIG instance reserves nothing. */
static nvmlMemory_v2_t memory_of(const struct device *device) {
    bool whole = device->mig == NULL;
    nvmlMemory_v2_t memory = {
        .total = whole ? device->identity.memory_bytes : device->mig->memory_bytes,
        .reserved = whole ? device->identity.reserved_bytes : 0,
        .used = whole ? device->state.memory_used_bytes : device->mig->memory_used_bytes,
    };
    memory.free = memory.total - memory.reserved - memory.used;
    return memory;
}

/* The first version knows no reserved memory: it counts as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    ENTER_DEVICE(handle, ANY_DEVICE, memory != NULL);
    nvmlMemory_v2_t now = memory_of(&device);
    *memory = (nvmlMemory_t){.total = now.total, .free = now.free, .used = now.used + now.reserved};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    ENTER_DEVICE(handle, ANY_DEVICE, memory != NULL);
    if (memory->version != NVML_VERSION_OF(nvmlMemory_v2_t, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    unsigned int version = memory->version;
    *memory = memory_of(&device);
    memory->version = version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, unsigned int sensor, unsigned int *celsius) {
    ENTER_DEVICE(handle, GPU_ONLY, celsius != NULL && sensor < NVML_TEMPERATURE_SENSORS);
    *celsius = (unsigned int)device.state.temperature_c;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t handle, nvmlTemperature_v1_t *temperature) {
    ENTER_DEVICE(handle, GPU_ONLY, temperature != NULL);
    if (temperature->version != NVML_VERSION_OF(nvmlTemperature_v1_t, 1)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (temperature->sensorType >= NVML_TEMPERATURE_SENSORS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    temperature->temperature = device.state.temperature_c;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned int *milliwatts) {
    ENTER_DEVICE(handle, GPU_ONLY, milliwatts != NULL);
    *milliwatts = device.state.power_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t handle, unsigned long long *millijoules) {
    ENTER_DEVICE(handle, GPU_ONLY, millijoules != NULL);
    *millijoules = device.state.energy_mj;
    return NVML_SUCCESS;
}

/* Nobody has lowered the limit of a simulated card: set, enforced and highest limit are one. */
EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t handle, unsigned int *milliwatts) {
    ENTER_DEVICE(handle, GPU_ONLY, milliwatts != NULL);
    *milliwatts = device.identity.max_power_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t handle, unsigned int *milliwatts) {
    ENTER_DEVICE(handle, GPU_ONLY, milliwatts != NULL);
    *milliwatts = device.identity.max_power_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t handle, unsigned int *milliwatts) {
    ENTER_DEVICE(handle, GPU_ONLY, milliwatts != NULL);
    *milliwatts = device.identity.max_power_mw;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t handle, unsigned int *lowest,
                                                                 unsigned int *highest) {
    ENTER_DEVICE(handle, GPU_ONLY, lowest != NULL && highest != NULL);
    *lowest = device.identity.min_power_mw;
    *highest = device.identity.max_power_mw;
    return NVML_SUCCESS;
}

/* The graphics clock runs with the SMs', and so, in proportion, does the video engines', whose highest the board says. */
static nvmlReturn_t video_clock(const struct device *device, unsigned int sm_mhz, unsigned int *mhz) {
    uint64_t value[MAX_VALUES];
    nvmlReturn_t status = read_answer(device->gpu, "nvmlDeviceGetMaxClockInfo", NVML_CLOCK_VIDEO, value);
    if (status == NVML_SUCCESS) {
        *mhz = (unsigned int)(value[0] * sm_mhz / device->identity.max_sm_clock_mhz);
    }
    return status;
}

static nvmlReturn_t clock_of(const struct device *device, unsigned int type, unsigned int sm_mhz, unsigned int mem_mhz,
                             unsigned int *mhz) {
    switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM:
        *mhz = sm_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_MEM:
        *mhz = mem_mhz;
        return NVML_SUCCESS;
    case NVML_CLOCK_VIDEO:
        return video_clock(device, sm_mhz, mhz);
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz) {
    ENTER_DEVICE(handle, GPU_ONLY, mhz != NULL);
    return clock_of(&device, type, device.state.sm_clock_mhz, device.state.mem_clock_mhz, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t handle, unsigned int type, unsigned int *mhz) {
    ENTER_DEVICE(handle, GPU_ONLY, mhz != NULL);
    return clock_of(&device, type, device.identity.max_sm_clock_mhz, device.identity.max_mem_clock_mhz, mhz);
}

/* Cards that lower their memory clock when idle (GDDR) do so in P8; HBM cards stay in P0. */
EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t handle, unsigned int *state) {
    ENTER_DEVICE(handle, GPU_ONLY, state != NULL);
    *state = device.state.mem_clock_mhz < device.identity.max_mem_clock_mhz ? NVML_PSTATE_8 : NVML_PSTATE_0;
    return NVML_SUCCESS;
}

static nvmlReturn_t put_uint(nvmlFieldValue_t *field, unsigned int number) {
    field->valueType = NVML_VALUE_UNSIGNED_INT;
    field->value.uiVal = number;
    return NVML_SUCCESS;
}

/* Counters and modes are what the board says, or the error that it says second; all of them are 64 bits wide here. */
static nvmlReturn_t put_answered(const struct device *device, nvmlFieldValue_t *field) {
    uint64_t value[MAX_VALUES];
    bool remaps = field->fieldId >= NVML_FI_REMAPPED_COR && field->fieldId <= NVML_FI_REMAPPED_FAILURE;
    if (remaps && device->state.mig_count != 0) {
        return NVML_ERROR_NOT_SUPPORTED; /* documented: not while MIG instances are active */
    }
    nvmlReturn_t status = read_answer(device->gpu, "nvmlDeviceGetFieldValues", field->fieldId, value);
    if (status == NVML_SUCCESS && value[1] != NVML_SUCCESS) {
        return (nvmlReturn_t)value[1];
    }
    if (status == NVML_SUCCESS) {
        field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
        field->value.ullVal = value[0];
    }
    return status;
}

/* Of one link: what the board says of it, else its part of what went over all of them. */
static nvmlReturn_t put_link(const struct device *device, nvmlFieldValue_t *field) {
    uint64_t value[MAX_VALUES];
    unsigned int links = 0;
    while (read_answer(device->gpu, "nvmlDeviceGetNvLinkState", links, value) == NVML_SUCCESS) {
        links++;
    }
    if (field->scopeId >= links) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    nvmlReturn_t status = put_answered(device, field);
    unsigned int selector = field->fieldId | (field->scopeId + 1) << 16;
    if (read_answer(device->gpu, "nvmlDeviceGetFieldValues", selector, value) == NVML_SUCCESS) {
        field->value.ullVal = value[0];
    } else if (status == NVML_SUCCESS) {
        field->value.ullVal /= links;
    }
    return status;
}

/* Averaged power came with Ampere; GA100 (compute capability 8.0) has only the instantaneous one. */
static bool averages_power(const struct gpu_identity *identity) {
    bool ga100 = identity->compute_major == 8 && identity->compute_minor == 0;
    return identity->architecture >= NVML_ARCH_AMPERE && !ga100;
}

/* Of NVLink 5 and of the links to a Grace CPU, the driver tells each link's own, and nothing of all together. */
static bool of_each_link(unsigned int field) {
    bool nvlink = field >= NVML_FI_NVLINK5_FIRST && field <= NVML_FI_NVLINK5_LAST;
    bool history = field >= NVML_FI_NVLINK_FEC_FIRST && field <= NVML_FI_NVLINK_FEC_LAST;
    bool c2c = field >= NVML_FI_C2C_ERROR_FIRST && field <= NVML_FI_C2C_ERROR_LAST;
    return nvlink || history || c2c || field == NVML_FI_C2C_STATUS || field == NVML_FI_C2C_MAX_BW;
}

static nvmlReturn_t put_each(const struct device *device, nvmlFieldValue_t *field) {
    uint64_t value[MAX_VALUES];
    unsigned int selector = field->fieldId | (field->scopeId + 1) << 16;
    nvmlReturn_t status = read_answer(device->gpu, "nvmlDeviceGetFieldValues", selector, value);
    if (status == NVML_SUCCESS) {
        field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
        field->value.ullVal = value[0];
    }
    return status;
}

static nvmlReturn_t read_field(const struct device *device, nvmlFieldValue_t *field) {
    const struct gpu_identity *identity = &device->identity;
    bool of_links = field->fieldId == NVML_FI_NVLINK_DATA_TX || field->fieldId == NVML_FI_NVLINK_DATA_RX;
    if (device->mig == NULL && of_each_link(field->fieldId)) {
        return put_each(device, field);
    }
    if (device->mig == NULL && of_links && field->scopeId != NVML_ALL_LINKS) {
        return put_link(device, field);
    }
    if (device->mig != NULL || (field->scopeId != 0 && field->scopeId != NVML_ALL_LINKS)) {
        return NVML_ERROR_NOT_SUPPORTED; /* other scopes are power domains */
    }
    switch (field->fieldId) {
    case NVML_FI_MEMORY_TEMP:
        return identity->memory_temperature ? put_uint(field, (unsigned int)device->state.memory_temperature_c)
                                            : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_TOTAL_ENERGY_CONSUMPTION:
        field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
        field->value.ullVal = device->state.energy_mj;
        return NVML_SUCCESS;
    case NVML_FI_POWER_AVERAGE:
        return averages_power(identity) ? put_uint(field, device->state.power_mw) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_POWER_INSTANT:
        return put_uint(field, device->state.power_mw);
    case NVML_FI_POWER_MIN_LIMIT:
        return put_uint(field, identity->min_power_mw);
    case NVML_FI_POWER_MAX_LIMIT:
    case NVML_FI_POWER_DEFAULT_LIMIT:
    case NVML_FI_POWER_CURRENT_LIMIT:
        return put_uint(field, identity->max_power_mw);
    default:
        return put_answered(device, field);
    }
}

/* Succeeds as a whole; each entry carries its own result. */
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values) {
    ENTER_DEVICE(handle, ANY_DEVICE, values != NULL && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = read_field(&device, &values[i]);
    }
    return NVML_SUCCESS;
}
