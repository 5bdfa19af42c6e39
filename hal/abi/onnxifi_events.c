/* Events: single-shot, with the status of what signalled them. None of this calls Python. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "onnxifi_core.h"

event *event_new(device *on, bool produced) {
    pthread_condattr_t clock;
    event *made = object_new(KIND_EVENT, sizeof *made, on);
    if (made == NULL) {
        return NULL;
    }
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* for waiting with a limit */
    pthread_cond_init(&made->changed, &clock);
    pthread_condattr_destroy(&clock);
    made->produced = produced;
    TAILQ_INSERT_TAIL(&core.events, made, entry);
    return made;
}

void event_end(event *of) {
    TAILQ_REMOVE(&core.events, of, entry);
    pthread_cond_destroy(&of->changed);
}

bool event_signal(event *of, int32_t status, const char *message) {
    if (of->signalled) {
        return false;
    }
    of->signalled = true;
    of->status = status;
    if (message != NULL) {
        snprintf(of->message, sizeof of->message, "%s", message);
    }
    pthread_cond_broadcast(&of->changed);
    /* Under the same lock: no run can begin to wait for the event between its signal and this. */
    jobs_wake(of);
    return true;
}

/* ------------------------------------------------------------------------------------------- API functions */

static int32_t init_event(backend *on, onnxEvent *out) {
    if (!object_alive(&on->base)) {
        return ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    }
    int32_t status = fault_take(FUNCTION_InitEvent);
    if (status != ONNXIFI_STATUS_SUCCESS) {
        return status;
    }
    event *made = event_new(on->base.device, false);
    *out = made != NULL ? npu_handle_new(&core.handles, KIND_EVENT, made) : NULL;
    if (*out != NULL) {
        return ONNXIFI_STATUS_SUCCESS;
    }
    if (made != NULL) {
        event_end(made);
        free(made);
    }
    return ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
}

onnxStatus onnxInitEvent(onnxBackend handle, onnxEvent *out) {
    NPU_HOST_MODE_ASIDE;
    if (out == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    *out = NULL;
    backend *on = core_find(KIND_BACKEND, handle);
    if (on == NULL) {
        return ONNXIFI_STATUS_INVALID_BACKEND;
    }
    int32_t status = init_event(on, out);
    core_leave();
    object_release(on);
    return status;
}

onnxStatus onnxSignalEvent(onnxEvent handle) {
    NPU_HOST_MODE_ASIDE;
    event *of = core_find(KIND_EVENT, handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_EVENT;
    }
    int32_t status = object_alive(&of->base) ? fault_take(FUNCTION_SignalEvent) : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    if (status == ONNXIFI_STATUS_SUCCESS && !event_signal(of, ONNXIFI_STATUS_SUCCESS, NULL)) {
        status = ONNXIFI_STATUS_INVALID_STATE;
    }
    core_leave();
    object_release(of);
    return status;
}

onnxStatus onnxGetEventState(onnxEvent handle, onnxEventState *state) {
    NPU_HOST_MODE_ASIDE;
    if (state == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    *state = ONNXIFI_EVENT_STATE_INVALID;
    event *of = core_find(KIND_EVENT, handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_EVENT;
    }
    int32_t status = object_alive(&of->base) ? fault_take(FUNCTION_GetEventState) : ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    if (status == ONNXIFI_STATUS_SUCCESS) {
        *state = of->signalled ? ONNXIFI_EVENT_STATE_SIGNALLED : ONNXIFI_EVENT_STATE_NONSIGNALLED;
    }
    core_leave();
    object_release(of);
    return status;
}

/* Waits until the event is signalled, its device is gone (BACKEND_UNAVAILABLE) or the limit (NULL: none) has passed.
 * Injected failures apply to completed waits. With the lock held. */
static int32_t wait_for(event *of, const struct timespec *limit) {
    while (!of->signalled && object_alive(&of->base)) {
        if (limit == NULL) {
            /* It always ends: a run settles its event in any case, and unplugging the device wakes all waiters. */
            pthread_cond_wait(&of->changed, &core.lock);
        } else if (pthread_cond_timedwait(&of->changed, &core.lock, limit) == ETIMEDOUT) {
            break;
        }
    }
    if (!object_alive(&of->base)) {
        return ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    }
    return of->signalled ? fault_take(FUNCTION_WaitEvent) : ONNXIFI_STATUS_SUCCESS;
}

static onnxStatus wait_event(event *of, const struct timespec *limit, bool *over) {
    core_enter();
    int32_t status = wait_for(of, limit);
    *over = of->signalled || status != ONNXIFI_STATUS_SUCCESS;
    if (status == ONNXIFI_STATUS_SUCCESS) {
        status = fault_filter(FUNCTION_WaitEvent, of->status);
    }
    core_leave();
    return status;
}

void *event_wait_begin(onnxEvent handle) {
    event *of = core_find(KIND_EVENT, handle);
    if (of != NULL) {
        core_leave();
    }
    return of;
}

onnxStatus onnxWaitEvent(onnxEvent handle) {
    NPU_HOST_MODE_ASIDE;
    bool over;
    event *of = event_wait_begin(handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_EVENT;
    }
    int32_t status = wait_event(of, NULL, &over);
    object_release(of);
    return status;
}

onnxStatus onnxReleaseEvent(onnxEvent handle) {
    NPU_HOST_MODE_ASIDE;
    core_enter();
    event *of = npu_handle_get(&core.handles, KIND_EVENT, handle);
    int32_t status = of != NULL ? fault_take(FUNCTION_ReleaseEvent) : ONNXIFI_STATUS_INVALID_EVENT;
    if (status == ONNXIFI_STATUS_SUCCESS) {
        npu_handle_remove(&core.handles, KIND_EVENT, handle);
        if (!of->produced && !npu_embed_forked()) { /* it cannot be signalled any more, so its waiters get an error */
            event_signal(of, ONNXIFI_STATUS_INTERNAL_ERROR, "the event was released before it was signalled");
        }
    }
    core_leave();
    if (status == ONNXIFI_STATUS_SUCCESS) {
        object_release(of);
    }
    return status;
}

/* ---------------------------------------------------------------------------------------------- extensions */

static struct timespec after(uint32_t milliseconds) {
    struct timespec limit;
    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += milliseconds / 1000;
    limit.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (limit.tv_nsec >= 1000000000) {
        limit.tv_sec++;
        limit.tv_nsec -= 1000000000;
    }
    return limit;
}

onnxStatus event_wait_slice(void *event, uint32_t milliseconds, bool *over) {
    struct timespec limit = after(milliseconds);
    return wait_event(event, &limit, over);
}

static void tell(const char *text, char *message, size_t *length) {
    if (length == NULL) {
        return;
    }
    if (message == NULL || *length == 0) {
        *length = 0;
        return;
    }
    int written = snprintf(message, *length, "%s", text);
    *length = (size_t)written < *length ? (size_t)written : *length - 1;
}

onnxStatus event_wait_for(onnxEvent handle, uint32_t milliseconds, onnxEventState *state, onnxStatus *status,
                          char *message, size_t *length) {
    NPU_HOST_MODE_ASIDE;
    if (state == NULL || status == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    *state = ONNXIFI_EVENT_STATE_INVALID;
    *status = ONNXIFI_STATUS_SUCCESS;
    struct timespec limit = after(milliseconds);
    event *of = core_find(KIND_EVENT, handle);
    if (of == NULL) {
        tell("", message, length);
        return ONNXIFI_STATUS_INVALID_EVENT;
    }
    int32_t result = wait_for(of, milliseconds > 0 ? &limit : NULL);
    if (result == ONNXIFI_STATUS_SUCCESS) {
        *state = of->signalled ? ONNXIFI_EVENT_STATE_SIGNALLED : ONNXIFI_EVENT_STATE_NONSIGNALLED;
        *status = of->status;
    }
    tell(result == ONNXIFI_STATUS_SUCCESS ? of->message : "", message, length);
    core_leave();
    object_release(of);
    return result;
}

onnxStatus event_timing(onnxEvent handle, npusimRunTiming *timing) {
    NPU_HOST_MODE_ASIDE;
    if (timing == NULL) {
        return ONNXIFI_STATUS_INVALID_POINTER;
    }
    *timing = (npusimRunTiming){0};
    event *of = core_find(KIND_EVENT, handle);
    if (of == NULL) {
        return ONNXIFI_STATUS_INVALID_EVENT;
    }
    bool timed = of->signalled && of->timed;
    if (timed) {
        *timing = (npusimRunTiming){of->timing.cycles, of->timing.run_ps, of->timing.queued_ps, of->timing.host_ps,
                                    of->timing.total_ps};
    }
    core_leave();
    object_release(of);
    return timed ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_INVALID_STATE;
}
