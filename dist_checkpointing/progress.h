#pragma once

#include "mapping/base/progress.h"
