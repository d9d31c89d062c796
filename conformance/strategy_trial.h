#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "configs/policy/capabilities.h"
#include "configs/policy/options.h"
#include "conformance/report.h"
#include "conformance/sample_tensors.h"
#include "strategies/storage/location.h"

namespace dckpt::conformance {

/// A strategy, the inputs of its trial, and the findings.
struct TriedStrategy {
  TriedStrategy(const SaveOptions& options, const Location& scratch);

  SaveOptions options;  ///< overwriting
  Capabilities can;
  Location scratch;
  Tensors tensors;  ///< tensors that the strategy can store
  ConformanceReport report;
};

/// Runs checks of a strategy and reports failures. Groups of checks derive from it and use its
/// verbs.
class StrategyTrial {
 public:
  explicit StrategyTrial(TriedStrategy& tried)
      : options_(tried.options),
        can_(tried.can),
        tensors_(tried.tensors),
        scratch_(tried.scratch),
        report_(tried.report) {}

  void check(const std::string& what, const std::function<void()>& body);

 protected:
  void problem(const std::string& message);
  void expect(bool holds, const std::string& message) {
    if (!holds) problem(message);
  }
  void expect_equal(const std::string& key, const Tensor& loaded, const Tensor& saved);
  /// Loads all tensors on one rank and compares them.
  void expect_all(const Location& checkpoint);

  Location path(const std::string& name) const { return scratch_ / name; }
  /// Returns the state of a rank in a form that the strategy can save.
  StateDict saved_by(int rank, int ranks) const;

  const SaveOptions& options_;
  const Capabilities& can_;
  const Tensors& tensors_;

 private:
  const Location& scratch_;
  ConformanceReport& report_;
  std::string what_;
  std::size_t found_ = 0;  ///< number of problems of this check
};

}  // namespace dckpt::conformance
