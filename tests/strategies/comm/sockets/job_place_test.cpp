#include "strategies/comm/sockets/job_place.h"

#include <gmock/gmock.h>

#include <map>

#include "mapping/base/error.h"
#include "strategies/comm/sockets/rendezvous.h"

namespace dckpt::sockets::job_place_test {
namespace {

using ::testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

JobPlace place(const Environment& environment) {
  return job_place([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Environment& environment) {
  try {
    (void)place(environment);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(JobPlace, PlainVariablesNameRankSizeAndRendezvous) {
  const JobPlace found =
      place({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 8);
  EXPECT_EQ(found.rendezvous, "n1:29500");
}

TEST(JobPlace, TorchrunsAgentHasTheMasterPortItself) {
  EXPECT_EQ(place({{"RANK", "0"},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "fe80::1"},
                   {"MASTER_PORT", "29500"},
                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}})
                .rendezvous,
            "[fe80::1]:29501");
}

TEST(JobPlace, SlurmNamesTheFirstHostOfTheStep) {
  const Environment slurm = {{"SLURM_PROCID", "5"},
                             {"SLURM_STEP_NUM_TASKS", "16"},
                             {"SLURM_STEP_NODELIST", "gpu[007-012,14],login"},
                             {"SLURM_JOB_ID", "1234"},
                             {"SLURM_STEP_ID", "2"}};
  EXPECT_EQ(place(slurm).rendezvous, "gpu007:29746");  // 20000 + (1234 * 16 + 2) % 10000
  Environment chosen = slurm;
  chosen["DCKPT_RENDEZVOUS"] = "/run/job/";
  EXPECT_EQ(place(chosen).rendezvous, "/run/job/");
}

TEST(JobPlace, AnMpirunInsideOfASlurmJobComesFirst) {
  const JobPlace found = place({{"SLURM_PROCID", "0"},
                                {"SLURM_STEP_NUM_TASKS", "1"},
                                {"OMPI_COMM_WORLD_RANK", "2"},
                                {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.size, 4);
  EXPECT_EQ(found.rendezvous, "");
}

TEST(JobPlace, VariablesWithoutMeaningAreNamed) {
  EXPECT_THAT(error_of({}), HasSubstr("set RANK, WORLD_SIZE and DCKPT_RENDEZVOUS"));
  EXPECT_THAT(error_of({{"RANK", "0"}}), HasSubstr("does not say which rank"));
  EXPECT_THAT(error_of({{"RANK", "8"}, {"WORLD_SIZE", "8"}}), HasSubstr("RANK is '8', expected"));
  EXPECT_THAT(error_of({{"RANK", "x"}, {"WORLD_SIZE", "8"}}), HasSubstr("RANK is 'x'"));
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE is '0'"));
  EXPECT_THAT(
      error_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "-1"}}),
      HasSubstr("MASTER_PORT is '-1'"));
}

TEST(JobPlace, HostListsMayHaveRangesAnywhere) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("rack[2-3]n[01,04-05]-ib,x"), "rack2n01-ib");
  EXPECT_EQ(first_host("broken["), "");
  EXPECT_EQ(first_host(""), "");
}

TEST(Rendezvous, IsAnAddressWithAPortOrAFolder) {
  EXPECT_EQ(parse_rendezvous("node1:29500").text(), "node1:29500");
  EXPECT_EQ(parse_rendezvous("[::1]:29500").text(), "[::1]:29500");
  EXPECT_EQ(parse_rendezvous("./here").folder, "./here");
  for (const char* const wrong :
       {"", "node1", "node1:", ":29500", "node1:0", "node1:65536", "::1:29500", "node1:29500x"}) {
    EXPECT_THROW((void)parse_rendezvous(wrong), CheckpointError) << wrong;
  }
}

}  // namespace
}  // namespace dckpt::sockets::job_place_test
