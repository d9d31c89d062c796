#pragma once

/// Declares the library's types without defining them, for headers of your own that only name them.
/// Apart from cstdint it includes nothing of the standard library.

#include <cstdint>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

class CheckpointError;
enum class ErrorCode;

class Shape;
class Tensor;
enum class DType : std::uint8_t;
struct Box;

class Value;
using StateDict = Value;
class Dict;
class ReplicaId;
struct LocalNonpersistentObject;
struct Opaque;
struct ShardedObject;
struct ShardedTensor;
struct ShardedTensorFactory;

class Communicator;
class Transport;
class Location;
class Storage;
class CheckpointReader;
class SaveStrategy;

struct LoadOptions;
struct Policy;
struct Retention;
struct SaveOptions;
struct StrategySpec;
struct SaveHooks;
struct LoadReport;
struct SaveReport;

class AsyncSaver;
class Checkpointer;
class PendingSave;
struct ConvertOptions;
struct InspectOptions;

}  // namespace dckpt
