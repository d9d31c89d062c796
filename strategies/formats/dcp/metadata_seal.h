#pragma once

#include <string>

#include "mapping/base/bytes.h"

namespace dckpt {

/// Adds to the pickle of a DCP `.metadata` file the attribute `dckpt_metadata_crc32` of its root,
/// with the CRC-32 of all of the pickle, in which the four bytes of the number count as zeros. The
/// number takes more bytes than Python would spend on it. Whoever loads the metadata and pickles
/// them again, changed or not, therefore writes a number that is not compared.
Bytes sealed(Bytes pickle);

/// Returns whether the pickle ends with such a number.
bool is_sealed(ByteView pickle);

/// Throws CheckpointError (corrupt), which names the file, if the pickle is sealed with the number
/// of other bytes. Nothing else notices a damaged letter of a key.
void check_seal(ByteView pickle, const std::string& file_name);

}  // namespace dckpt
