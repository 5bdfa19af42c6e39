/* What npusim's ONNXIFI libraries offer beyond the fifteen functions: reached by name, through one more symbol.
 *
 * The first three functions are those that clients of ONNXIFI know; the others are npusim's own. */
#ifndef ONNXIFI_EXT_H
#define ONNXIFI_EXT_H 1

#include "onnxifi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef onnxStatus(ONNXIFI_ABI *onnxExtensionFunctionPointer)(void);

/* The function called name, to be cast to its type below. INVALID_POINTER: name or function is NULL; INVALID_ID;
 * UNIDENTIFIED_NAME: there is none of that name; BACKEND_UNAVAILABLE. */
typedef onnxStatus(ONNXIFI_ABI *onnxGetExtensionFunctionAddressFunction)(
    onnxBackendID backendID, const char *name, onnxExtensionFunctionPointer *function);
ONNXIFI_PUBLIC onnxStatus ONNXIFI_ABI onnxGetExtensionFunctionAddress(
    onnxBackendID backendID, const char *name, onnxExtensionFunctionPointer *function);

/* ---------------------------------------------------------------------------------------------- trace events */

#define ONNXIFI_TRACE_EVENT_NAME_SIZE 32

typedef struct onnxTraceEvent {
    char eventName[ONNXIFI_TRACE_EVENT_NAME_SIZE + 1];
    char eventType;     /* 'X': a span with its duration */
    uint64_t timestamp; /* microseconds of simulated time since the run began */
    uint32_t tid;       /* number of the device */
    uint64_t duration;  /* microseconds of simulated time */
} onnxTraceEvent;

typedef struct onnxTraceEventList {
    uint64_t numEvents;
    onnxTraceEvent **traceEvents;
} onnxTraceEventList;

/* "onnxSetIOAndRunGraphFunction": onnxSetGraphIO and onnxRunGraph in one, starting at once. traceEvents may be NULL; if
 * not, it is filled in before the output event is signalled, and has to exist until then. */
typedef onnxStatus(ONNXIFI_ABI *onnxSetIOAndRunGraphFunction)(
    onnxGraph graph, uint32_t inputsCount, const onnxTensorDescriptorV1 *inputDescriptors, uint32_t outputsCount,
    const onnxTensorDescriptorV1 *outputDescriptors, onnxMemoryFenceV1 *outputFence, onnxTraceEventList *traceEvents);

/* "onnxReleaseTraceEventsFunction": frees what the list holds. INVALID_POINTER: traceEvents is NULL. */
typedef onnxStatus(ONNXIFI_ABI *onnxReleaseTraceEventsFunction)(onnxTraceEventList *traceEvents);

/* "onnxWaitEventForFunction": waits, but no longer than timeoutMs milliseconds; 0 is for ever. Its own status says
 * whether it could wait; *eventState, whether the event is signalled; *eventStatus, if it is, how its run ended.
 * message may be NULL; else it gets a text of at most *messageLength bytes with the NUL, and *messageLength becomes the
 * length of the text without it: 0 where there is nothing to say. */
typedef onnxStatus(ONNXIFI_ABI *onnxWaitEventForFunction)(
    onnxEvent event, uint32_t timeoutMs, onnxEventState *eventState, onnxStatus *eventStatus, char *message,
    size_t *messageLength);

/* ----------------------------------------------------------------------------------------------- of npusim */

/* A graph property, with its value: the class of the graph's runs. A higher one goes first, and interrupts what is
 * below it where the device can do that. */
#define NPUSIM_GRAPH_PROPERTY_PRIORITY (UINT64_C(1) << 32)
#define NPUSIM_PRIORITY_LOW 1
#define NPUSIM_PRIORITY_MEDIUM 2
#define NPUSIM_PRIORITY_HIGH 3

/* What a run took on the simulated device. runTime, queuedTime and hostTime add up to totalTime, but for the time that
 * the run was parked for others. Picoseconds of simulated time. */
typedef struct npusimRunTiming {
    uint64_t cycles;     /* runTime in cycles of the device's clock */
    uint64_t runTime;    /* on the device */
    uint64_t queuedTime; /* waiting for it */
    uint64_t hostTime;   /* transfers, submission, interrupt */
    uint64_t totalTime;
} npusimRunTiming;

/* "npusimGetRunTimingFunction": of the run that signalled an output event. INVALID_EVENT, INVALID_POINTER;
 * INVALID_STATE: it is not signalled, or no run that took time has signalled it. */
typedef onnxStatus(ONNXIFI_ABI *npusimGetRunTimingFunction)(onnxEvent event, npusimRunTiming *timing);

/* "npusimInjectFunction": the next `times` calls of function ("onnxInitGraph"; "run" is the run itself) whose arguments
 * are right end with status; times 0 takes that back. INVALID_NAME: there is no such function; UNSUPPORTED_ATTRIBUTE: it
 * never returns that status. NPUSIM_ONNXIFI_INJECT="onnxInitGraph=NO_DEVICE_MEMORY:2,run=INTERNAL_ERROR" does the same
 * from the start. */
typedef onnxStatus(ONNXIFI_ABI *npusimInjectFunction)(
    onnxBackendID backendID, const char *function, onnxStatus status, uint32_t times);

/* "npusimUnplugFunction", "npusimPlugFunction": the device goes, and comes back. Objects made before it went stay
 * unavailable; its ID is valid throughout. */
typedef onnxStatus(ONNXIFI_ABI *npusimPlugFunction)(onnxBackendID backendID);
typedef npusimPlugFunction npusimUnplugFunction;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
