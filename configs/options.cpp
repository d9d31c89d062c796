#include "configs/options.h"
