/* For clients that include the parts of the interface one by one: NeuralNetworks.h has all of it. */
#include "NeuralNetworks.h"
