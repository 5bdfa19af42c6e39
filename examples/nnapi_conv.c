/* Runs a convolution network through the NNAPI C API: 3x3 convolution with RELU, global average pool, classifier,
 * softmax. Prints the probabilities and the time of the simulated device.
 *
 * Build: cc nnapi_conv.c $(pkg-config --cflags --libs neuralnetworks) */
#include <NeuralNetworks.h>

#include <stdio.h>
#include <stdlib.h>

enum { SIZE = 16, IN = 3, FILTERS = 8, CLASSES = 4 };

static ANeuralNetworksModel *model;
static uint32_t operands; /* number of operands of the model */

static void check(int result, const char *what) {
    if (result != ANEURALNETWORKS_NO_ERROR) {
        fprintf(stderr, "%s: result code %d\n", what, result);
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

static uint32_t tensor(uint32_t rank, const uint32_t *dims, const float *values, size_t count) {
    ANeuralNetworksOperandType type = {ANEURALNETWORKS_TENSOR_FLOAT32, rank, dims, 0, 0};
    CHECK(ANeuralNetworksModel_addOperand(model, &type));
    if (values)
        CHECK(ANeuralNetworksModel_setOperandValue(model, (int32_t)operands, values, count * sizeof *values));
    return operands++;
}

static uint32_t scalar(int32_t type, const void *value) {
    CHECK(ANeuralNetworksModel_addOperand(model, &(ANeuralNetworksOperandType){type, 0, NULL, 0, 0}));
    CHECK(ANeuralNetworksModel_setOperandValue(model, (int32_t)operands, value, 4));
    return operands++;
}
#define INT(number) scalar(ANEURALNETWORKS_INT32, &(int32_t){number})
#define TENSOR(values, count, ...) \
    tensor(sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__}, values, count)
#define OPERATION(type, output, ...)                                                                             \
    CHECK(ANeuralNetworksModel_addOperation(model, type, sizeof((uint32_t[]){__VA_ARGS__}) / 4,                  \
                                            (uint32_t[]){__VA_ARGS__}, 1, &(uint32_t){output}))

int main(void) {
    float filter[FILTERS * 9 * IN], bias[FILTERS] = {0}, dense[CLASSES * FILTERS], offset[CLASSES] = {0};
    float image[SIZE * SIZE * IN], result[CLASSES], beta = 1;
    for (int i = 0; i < FILTERS * 9 * IN; i++) filter[i] = (float)(i * 7 % 11 - 5) / 16;
    for (int i = 0; i < CLASSES * FILTERS; i++) dense[i] = (float)(i * 5 % 9 - 4) / 8;
    for (int i = 0; i < SIZE * SIZE * IN; i++) image[i] = (float)(i % 13) / 13;

    CHECK(ANeuralNetworksModel_create(&model));
    uint32_t x = TENSOR(NULL, 0, 1, SIZE, SIZE, IN), features = TENSOR(NULL, 0, 1, SIZE, SIZE, FILTERS);
    uint32_t pooled = TENSOR(NULL, 0, 1, 1, 1, FILTERS), logits = TENSOR(NULL, 0, 1, CLASSES);
    uint32_t y = TENSOR(NULL, 0, 1, CLASSES), none = INT(ANEURALNETWORKS_FUSED_NONE), one = INT(1), all = INT(SIZE);
    uint32_t w = TENSOR(filter, FILTERS * 9 * IN, FILTERS, 3, 3, IN), b = TENSOR(bias, FILTERS, FILTERS);
    uint32_t v = TENSOR(dense, CLASSES * FILTERS, CLASSES, FILTERS), c = TENSOR(offset, CLASSES, CLASSES);
    uint32_t same = INT(ANEURALNETWORKS_PADDING_SAME), valid = INT(ANEURALNETWORKS_PADDING_VALID);
    OPERATION(ANEURALNETWORKS_CONV_2D, features, x, w, b, same, one, one, INT(ANEURALNETWORKS_FUSED_RELU));
    OPERATION(ANEURALNETWORKS_AVERAGE_POOL_2D, pooled, features, valid, one, one, all, all, none);
    OPERATION(ANEURALNETWORKS_FULLY_CONNECTED, logits, pooled, v, c, none);
    OPERATION(ANEURALNETWORKS_SOFTMAX, y, logits, scalar(ANEURALNETWORKS_FLOAT32, &beta));
    CHECK(ANeuralNetworksModel_identifyInputsAndOutputs(model, 1, &x, 1, &y));
    CHECK(ANeuralNetworksModel_finish(model));

    ANeuralNetworksDevice *device;
    ANeuralNetworksCompilation *compilation;
    ANeuralNetworksExecution *execution;
    uint64_t nanoseconds;
    CHECK(ANeuralNetworks_getDevice(0, &device)); /* NPUSIM_NNAPI_DEVICES lists the devices */
    const ANeuralNetworksDevice *chosen[] = {device};
    CHECK(ANeuralNetworksCompilation_createForDevices(model, chosen, 1, &compilation));
    CHECK(ANeuralNetworksCompilation_finish(compilation));
    CHECK(ANeuralNetworksExecution_create(compilation, &execution));
    CHECK(ANeuralNetworksExecution_setMeasureTiming(execution, true));
    CHECK(ANeuralNetworksExecution_setInput(execution, 0, NULL, image, sizeof image));
    CHECK(ANeuralNetworksExecution_setOutput(execution, 0, NULL, result, sizeof result));
    CHECK(ANeuralNetworksExecution_compute(execution));
    CHECK(ANeuralNetworksExecution_getDuration(execution, ANEURALNETWORKS_DURATION_ON_HARDWARE, &nanoseconds));
    for (int i = 0; i < CLASSES; i++) printf("%.6f\n", result[i]);
    printf("%llu ns on the device\n", (unsigned long long)nanoseconds);
}
