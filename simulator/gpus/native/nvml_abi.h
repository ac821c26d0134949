/*
 * The part of NVML's binary interface that this library plays, in our own declarations: names, values and layouts
 * as NVIDIA documents them (NVML API Reference Guide), checked against the marshalling of nvidia-ml-py in the tests.
 */
#ifndef NVML_ABI_H
#define NVML_ABI_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* A handle is a number in a pointer's clothes (see session.c); nobody ever dereferences it. */
typedef struct nvml_device *nvmlDevice_t;

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

enum { NVML_ARCH_TURING = 6, NVML_ARCH_AMPERE = 7, NVML_ARCH_ADA = 8, NVML_ARCH_HOPPER = 9 };
enum { NVML_BRAND_NVIDIA = 14 };
enum { NVML_INFOROM_OBJECTS = 3 }; /* OEM, ECC, power */
enum { NVML_TEMPERATURE_GPU = 0, NVML_TEMPERATURE_SENSORS = 1 };
enum { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_CLOCK_VIDEO = 3 };
enum { NVML_PSTATE_0 = 0, NVML_PSTATE_8 = 8 };
enum { NVML_VALUE_UNSIGNED_INT = 1, NVML_VALUE_UNSIGNED_LONG_LONG = 3 };
enum {
    NVML_FI_MEMORY_TEMP = 82,
    NVML_FI_TOTAL_ENERGY_CONSUMPTION = 83,
    NVML_FI_C2C_STATUS = 171,
    NVML_FI_C2C_MAX_BW = 172,
    NVML_FI_NVLINK5_FIRST = 201,
    NVML_FI_NVLINK5_LAST = 222,
    NVML_FI_C2C_ERROR_FIRST = 231,
    NVML_FI_C2C_ERROR_LAST = 234,
    NVML_FI_NVLINK_FEC_FIRST = 235,
    NVML_FI_NVLINK_FEC_LAST = 250,
    NVML_FI_NVLINK_DATA_TX = 138,
    NVML_FI_NVLINK_DATA_RX = 139,
    NVML_FI_REMAPPED_COR = 142,
    NVML_FI_REMAPPED_FAILURE = 145,
    NVML_FI_POWER_AVERAGE = 185,
    NVML_FI_POWER_INSTANT = 186,
    NVML_FI_POWER_MIN_LIMIT = 187,
    NVML_FI_POWER_MAX_LIMIT = 188,
    NVML_FI_POWER_DEFAULT_LIMIT = 189,
    NVML_FI_POWER_CURRENT_LIMIT = 190,
};
enum { NVML_TEMPERATURE_THRESHOLDS = 8, NVML_MEMORY_ERROR_TYPES = 2, NVML_ECC_COUNTER_TYPES = 2 };
enum { NVML_CLOCKS_EVENT_REASON_GPU_IDLE = 1 };
#define NVML_NO_INSTANCE 0xFFFFFFFFu /* the instance ids of a process on a GPU without MIG */

enum { NVML_TOPOLOGY_INTERNAL = 0, NVML_TOPOLOGY_NODE = 40, NVML_TOPOLOGY_SYSTEM = 50 };
enum { NVML_P2P_CAPS_NVLINK = 2, NVML_P2P_STATUS_OK = 0, NVML_P2P_STATUS_NOT_SUPPORTED = 5 };
enum { NVML_EVENT_XID = 8 };
enum { NVML_GPU_UTILIZATION_SAMPLES = 1 };
enum { NVML_PCIE_COUNTERS = 2 };
#define NVML_ALL_LINKS 0xFFFFFFFFu /* the scope of a field that sums over all NVLinks */

typedef struct {
    unsigned int gpu;
    unsigned int memory;
} nvmlUtilization_t;

typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int version;
    unsigned int sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef union {
    double dVal;
    unsigned int uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    signed long long sllVal;
    int siVal;
    unsigned short usVal;
} nvmlValue_t;

typedef struct {
    unsigned long long timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil;
    unsigned int memUtil;
    unsigned int encUtil;
    unsigned int decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned int pid;
    unsigned int smUtil;
    unsigned int memUtil;
    unsigned int encUtil;
    unsigned int decUtil;
    unsigned int jpgUtil;
    unsigned int ofaUtil;
} nvmlProcessUtilizationInfo_t;

typedef struct {
    unsigned int version;
    unsigned int processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;

typedef struct {
    unsigned int fieldId;
    unsigned int scopeId;
    long long timestamp;
    long long latencyUsec;
    unsigned int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

/* nvmlGpuFabricInfo_v3_t; the state is a byte, and the version holds the size. */
typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfoV_t;
#define NVML_GPU_FABRIC_INFO_V3 (sizeof(nvmlGpuFabricInfoV_t) | 3u << 24)

typedef struct {
    unsigned int multiprocessorCount;
    unsigned int sharedCopyEngineCount;
    unsigned int sharedDecoderCount;
    unsigned int sharedEncoderCount;
    unsigned int sharedJpegCount;
    unsigned int sharedOfaCount;
    unsigned int gpuInstanceSliceCount;
    unsigned int computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned long long bar1Total;
    unsigned long long bar1Free;
    unsigned long long bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned int version;
    unsigned int isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct nvml_event_set *nvmlEventSet_t; /* opaque to callers */

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType;
    unsigned long long eventData;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlEventData_t;

typedef struct nvml_gpu_instance *nvmlGpuInstance_t; /* opaque to callers */

typedef struct {
    unsigned int start;
    unsigned int size;
} nvmlGpuInstancePlacement_t;

typedef struct {
    nvmlDevice_t device;
    unsigned int id;
    unsigned int profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

/* Only its head is ever written: the strings and dates behind it stay as the caller left them. */
typedef struct {
    int isGridLicenseSupported;
    unsigned int licensableFeaturesCount;
    unsigned int firstFeatureCode;
    unsigned int firstFeatureState;
} nvmlGridLicensableFeaturesHead_t;

typedef struct nvml_gpm_sample *nvmlGpmSample_t; /* opaque to callers */

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        char *shortName;
        char *longName;
        char *unit;
    } metricInfo;
} nvmlGpmMetric_t;

/* The array is longer with each version of NVML; only its first numMetrics elements are ever touched. */
typedef struct {
    unsigned int version;
    unsigned int numMetrics;
    nvmlGpmSample_t sample1;
    nvmlGpmSample_t sample2;
    nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;

/* A versioned structure says which it is by its size and a number; callers must pass exactly this. */
#define NVML_VERSION_OF(type, number) ((unsigned int)(sizeof(type) | ((unsigned int)(number) << 24)))
#define NVML_GPM_SUPPORT_VERSION 1u
#define NVML_GPM_METRICS_GET_VERSION 1u

enum {
    NVML_GPM_GRAPHICS_UTIL = 1,
    NVML_GPM_SM_UTIL = 2,
    NVML_GPM_SM_OCCUPANCY = 3,
    NVML_GPM_INTEGER_UTIL = 4,
    NVML_GPM_ANY_TENSOR_UTIL = 5,
    NVML_GPM_DFMA_TENSOR_UTIL = 6,
    NVML_GPM_HMMA_TENSOR_UTIL = 7,
    NVML_GPM_IMMA_TENSOR_UTIL = 9,
    NVML_GPM_DRAM_BW_UTIL = 10,
    NVML_GPM_FP64_UTIL = 11,
    NVML_GPM_FP32_UTIL = 12,
    NVML_GPM_FP16_UTIL = 13,
    NVML_GPM_PCIE_TX_PER_SEC = 20,
    NVML_GPM_PCIE_RX_PER_SEC = 21,
    NVML_GPM_NVDEC_0_UTIL = 30,
    NVML_GPM_NVJPG_0_UTIL = 40,
    NVML_GPM_NVOFA_0_UTIL = 50,
    NVML_GPM_NVLINK_TOTAL_RX_PER_SEC = 60,
    NVML_GPM_NVLINK_TOTAL_TX_PER_SEC = 61,
};

#endif
