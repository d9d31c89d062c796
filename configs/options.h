#pragma once

namespace dckpt {}
