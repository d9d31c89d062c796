// These values describe how the library is compiled, where programs have to agree with it. This
// file is preprocessed with the library's options, and StageHeaders.cmake reads them from the
// result.
#include <boost/version.hpp>
#include <version>

#ifdef _GLIBCXX_DEBUG
constexpr int kDebugMode = 1;
#else
constexpr int kDebugMode = 0;
#endif
#if _GLIBCXX_USE_CXX11_ABI
constexpr int kCxx11Abi = 1;
#else
constexpr int kCxx11Abi = 0;
#endif
constexpr int kBoost = BOOST_VERSION;
