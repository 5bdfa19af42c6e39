/* Runs: from onnxRunGraph through the dispatcher and the engine to their output event; and devices that go. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "onnxifi_core.h"

/* More runs than this are not given to the engine at a time, whose own queue refuses what is beyond its end. */
enum { MOST_STARTED = 64, SECONDS_AT_EXIT = 10 };

static void leave_state(job *of) {
    TAILQ_REMOVE(&core.jobs[of->state], of, entry);
    if (of->state == JOB_STARTED) {
        core.started--;
        pthread_cond_signal(&core.ready);
        pthread_cond_broadcast(&core.finished);
    }
}

static void enter_state(job *of, job_state state) {
    of->state = state;
    TAILQ_INSERT_TAIL(&core.jobs[state], of, entry);
    core.started += state == JOB_STARTED;
    if (state == JOB_READY) {
        pthread_cond_signal(&core.ready);
    }
}

static void move(job *of, job_state state) {
    leave_state(of);
    enter_state(of, state);
}

void jobs_wake(const event *input) {
    job *next;
    for (job *each = TAILQ_FIRST(&core.jobs[JOB_PENDING]); each != NULL; each = next) {
        next = TAILQ_NEXT(each, entry);
        if (each->input == input) {
            move(each, JOB_READY);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- dispatcher */

/* Why a job that has come to its turn is not to be started, or SUCCESS. With the lock held. */
static int32_t obstacle(const job *of) {
    if (!object_alive(&of->graph->base)) {
        return ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
    }
    if (of->input != NULL && of->input->status != ONNXIFI_STATUS_SUCCESS) {
        return of->input->status; /* its input was not computed */
    }
    return fault_take(FUNCTION_RUN);
}

static void start(void *handle, const job *of) {
    static const npu_onnxifi_core functions = {job_complete, device_set_plugged, fault_inject};
    int32_t status =
        engine_start(of->graph->engine, of->binding->engine, of->traces != NULL, &functions, handle);
    if (status != ONNXIFI_STATUS_SUCCESS) {
        job_complete(handle, &(npu_outcome){.status = status, .message = "the run could not be started"});
    }
}

/* Takes jobs in the order in which they became ready. */
static void *dispatch(void *unused) {
    (void)unused;
    core_enter();
    for (;;) {
        job *next = TAILQ_FIRST(&core.jobs[JOB_READY]);
        if (next == NULL || core.started == MOST_STARTED) {
            pthread_cond_wait(&core.ready, &core.lock);
            continue;
        }
        void *handle = next->handle;
        int32_t status = obstacle(next);
        move(next, JOB_STARTED);
        core_leave();
        if (status == ONNXIFI_STATUS_SUCCESS) {
            start(handle, next);
        } else {
            job_complete(handle, &(npu_outcome){.status = status, .message = "the run was not started"});
        }
        core_enter();
    }
    return NULL;
}

/* One thread for all devices. */
static int32_t ensure_dispatcher(void) {
    pthread_t thread;
    if (!core.dispatching && npu_embed_thread(&thread, dispatch, NULL)) {
        core.dispatching = true;
        pthread_detach(thread);
    }
    return core.dispatching ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_NO_SYSTEM_RESOURCES;
}

/* ---------------------------------------------------------------------------------------------------- jobs */

job *job_new(graph *of, binding *io, event *input, event *output, onnxTraceEventList *traces) {
    job *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return NULL;
    }
    *made = (job){.graph = of, .binding = io, .input = input, .output = output, .traces = traces};
    made->handle = npu_handle_new(&core.handles, KIND_JOB, made);
    if (made->handle == NULL) {
        free(made);
        return NULL;
    }
    atomic_fetch_add(&of->base.references, 1);
    atomic_fetch_add(&io->references, 1);
    if (input != NULL) {
        atomic_fetch_add(&input->base.references, 1);
    }
    return made;
}

/* Drops all references except that to the graph, which leave_graph() drops. */
static void job_free(job *of) {
    object_release(of->output);
    if (of->input != NULL) {
        object_release(of->input);
    }
    binding_release(of->binding);
    free(of);
}

/* While a run is in flight, the graph's handle, or a thread in onnxReleaseGraph, also holds the graph. So it never ends
 * here, on a thread of the engine, which would then have to wait for itself. With the lock held. */
static void leave_graph(graph *of) {
    of->in_flight--;
    atomic_fetch_sub(&of->base.references, 1);
    pthread_cond_broadcast(&of->idle);
}

int32_t job_submit(job *of) {
    int32_t status = ensure_dispatcher();
    if (status != ONNXIFI_STATUS_SUCCESS) {
        return status;
    }
    of->graph->in_flight++;
    enter_state(of, of->input == NULL || of->input->signalled ? JOB_READY : JOB_PENDING);
    return ONNXIFI_STATUS_SUCCESS;
}

/* The spans as events in one allocation after the pointers to them; an empty list when there is no memory. */
static void fill_traces(onnxTraceEventList *list, uint32_t device, const npu_outcome *outcome) {
    size_t count = outcome->spans_count;
    onnxTraceEvent **pointers = count > 0 ? malloc(count * (sizeof *pointers + sizeof **pointers)) : NULL;
    *list = (onnxTraceEventList){pointers != NULL ? count : 0, pointers};
    onnxTraceEvent *events = pointers != NULL ? (onnxTraceEvent *)(void *)(pointers + count) : NULL;
    for (size_t i = 0; i < list->numEvents; i++) {
        const npu_span *span = &outcome->spans[i];
        pointers[i] = &events[i];
        events[i] = (onnxTraceEvent){.eventType = 'X', .tid = device};
        snprintf(events[i].eventName, sizeof events[i].eventName, "%s", span->name);
        events[i].timestamp = span->start_ps / 1000000;
        events[i].duration = (span->end_ps - span->start_ps) / 1000000;
    }
}

void job_complete(void *handle, const npu_outcome *outcome) {
    core_enter();
    job *of = npu_handle_remove(&core.handles, KIND_JOB, handle);
    core_leave();
    if (of == NULL) {
        return;
    }
    if (of->traces != NULL) { /* before the event, because its waiters read them */
        fill_traces(of->traces, of->graph->base.device->number, outcome);
    }
    core_enter();
    leave_state(of);
    if (outcome->timing != NULL) {
        of->output->timed = true;
        of->output->timing = *outcome->timing;
    }
    /* No run will settle it any more; the next line does. */
    of->output->produced = false;
    event_signal(of->output, outcome->status, outcome->message);
    leave_graph(of->graph);
    core_leave();
    job_free(of);
}

/* ----------------------------------------------------------------------------------------- devices that go */

static void unplug(device *gone) {
    event *event;
    job *next;
    gone->plugged = false;
    /* Everything created on it has an older epoch, and stays dead when a device is plugged in again. */
    gone->epoch++;
    TAILQ_FOREACH(event, &core.events, entry) {
        if (event->base.device == gone) {
            pthread_cond_broadcast(&event->changed);
            if (!event->produced) {
                event_signal(event, ONNXIFI_STATUS_BACKEND_UNAVAILABLE, "the device is gone");
            }
        }
    }
    for (job *each = TAILQ_FIRST(&core.jobs[JOB_PENDING]); each != NULL; each = next) {
        next = TAILQ_NEXT(each, entry);
        if (each->graph->base.device == gone) {
            move(each, JOB_READY); /* which ends it */
        }
    }
}

void device_set_plugged(uint32_t number, bool plugged) {
    core_enter();
    if (number < core.devices_count && core.devices[number].plugged != plugged) {
        if (plugged) {
            core.devices[number].plugged = true;
        } else {
            unplug(&core.devices[number]);
        }
    }
    core_leave();
}

/* Completes the remaining jobs, started or not. With the lock held, which is released meanwhile. */
static void end_jobs(void) {
    for (int state = 0; state <= JOB_STARTED; state++) {
        job *first;
        while ((first = TAILQ_FIRST(&core.jobs[state])) != NULL) {
            void *handle = first->handle;
            core_leave();
            job_complete(handle, &(npu_outcome){.status = ONNXIFI_STATUS_BACKEND_UNAVAILABLE, .message = "Python ended"});
            core_enter();
        }
    }
}

void core_end(void) {
    struct timespec limit;
    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += SECONDS_AT_EXIT;
    core_enter();
    for (uint32_t i = 0; i < core.devices_count; i++) {
        unplug(&core.devices[i]);
    }
    while (!TAILQ_EMPTY(&core.jobs[JOB_STARTED])) {
        if (pthread_cond_timedwait(&core.finished, &core.lock, &limit) == ETIMEDOUT) {
            break;
        }
    }
    end_jobs();
    core_leave();
}
