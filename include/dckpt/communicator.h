#pragma once

/// Communication between ranks: the interface, threads as ranks, processes as ranks over
/// sockets, and Communicators made of a Transport that moves messages.

#include "strategies/comm/communicator.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/sockets/socket_communicator.h"
#include "strategies/comm/threads.h"
