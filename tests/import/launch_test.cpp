#include "common.hpp"

namespace wt::import {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const std::string kArgs =
    " --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024"
    " --micro-batch-size 2 --vocab-size 1000 --bf16";

Options no_size() {
  Options o;
  o.cluster = "dgx-h100";
  return o;
}

TEST(Launch, TorchrunGivesTheWorld) {
  const auto in = import_text("go.sh", "NN=4\ntorchrun --nnodes=$NN --nproc-per-node 8 train.py" + kArgs, no_size());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->cluster.nodes, 4);
}

TEST(Launch, OneNodeIsTorchrunsDefault) {
  const auto in = import_text("go.sh", "torchrun --nproc_per_node=8 train.py" + kArgs, no_size());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->cluster.ranks(), 8);
}

TEST(Launch, SlurmDirectivesGiveTheWorld) {
  const auto in = import_text(
      "go.slurm", "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --gres=gpu:8\nsrun python train.py" + kArgs, no_size());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->cluster.nodes, 3);
}

TEST(Launch, AnUnknownNumberOfNodesIsNamed) {
  const auto in = import_text("go.sh", "torchrun --nnodes $NUM_NODES --nproc_per_node 8 train.py" + kArgs, no_size());
  EXPECT_FALSE(in.job);
  EXPECT_THAT(missing(in), Contains("number of nodes"));
  EXPECT_THAT(print(in.report, true), HasSubstr("--var NUM_NODES=N, or --nodes N"));
}

TEST(Launch, HostfileBesideAScript) {
  const auto in = import_files(
      {{"go.sh", "deepspeed --hostfile hostfile train.py" + kArgs}, {"hostfile", "a slots=8\nb slots=8 # spare\n"}},
      no_size());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->cluster.ranks(), 16);
}

TEST(Launch, HostfileFaults) {
  EXPECT_THAT(errors(import_text("hostfile", "a slots=8\na slots=8\n", no_size())),
              HasSubstr("hostfile:2: a slots=8: a host is there twice"));
  EXPECT_THAT(errors(import_text("hostfile", "a slots=8\nb slots=x\n", no_size())),
              HasSubstr("has no number of slots"));
}

TEST(Launch, HuggingFaceArguments) {
  Options o = no_size();
  o.model = "llama3-8b";
  const auto in =
      import_text("ft.sh",
                  "torchrun --nproc_per_node 8 sft.py --model_name_or_path x/y --per_device_train_batch_size 2 "
                  "--gradient_accumulation_steps 4 --bf16 --max_seq_length 2048 --gradient_checkpointing "
                  "--fsdp 'full_shard auto_wrap'",
                  o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->training.global_batch, 64);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::fsdp);
  EXPECT_EQ(in.job->strategy.fsdp.wrap, WrapKind::block);
  EXPECT_EQ(in.job->strategy.fsdp.backward_prefetch, BackwardPrefetch::none);  // Hugging Face's default
  EXPECT_TRUE(in.job->strategy.fsdp.no_sync);
  EXPECT_EQ(in.job->strategy.recompute.kind, RecomputeKind::full);
}

TEST(Launch, AnotherProgramsArgumentsAreItsOwn) {
  Options o = no_size();
  o.model = "llama3-8b";
  o.set = {"training.micro_batch=1", "training.seq_len=2048"};
  const auto in = import_text("go.sh", "torchrun --nproc_per_node 8 mine.py --depth 80", o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(fate_of(in, "--depth"), "not_carried");
}

TEST(Launch, ADeepSpeedConfigurationInAHereDocument) {
  Options o = no_size();
  const auto in = import_text(
      "go.sh",
      "Z=1\ncat <<EOT > ds.json\n{\n\"train_micro_batch_size_per_gpu\": 2,\n\"zero_optimization\": {\"stage\": $Z},\n"
      "\"fp16\": {\"enabled\": true}}\nEOT\ndeepspeed --num_nodes 2 --num_gpus 8 train.py --num-layers 8 --hidden-size "
      "512 "
      "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 2 --vocab-size 1000 "
      "--fp16 --deepspeed --zero-stage $Z",
      o);
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero1);
  EXPECT_EQ(in.report.decided("strategy.data_parallel")->to, "strategy.data_parallel");
}

// Scripts of the BLOOM kind: a launcher in a variable, flags in another, run by srun through bash -c.
TEST(Launch, LauncherAndFlagsInVariablesThroughBash) {
  const auto in =
      import_text("b.slurm",
                  "#!/bin/bash\n#SBATCH --nodes=3\nN=3\nexport LAUNCHER=\"python -m torch.distributed.launch "
                  "--nproc_per_node 8 \\\n"
                  " --nnodes $N\"\nexport CMD=\" \\\n `pwd`/pretrain.py \\\n --num-layers 10 --hidden-size 512 "
                  "--num-attention-heads 8 --seq-length 1024 \\\n"
                  " --max-position-embeddings 1024 --micro-batch-size 2 --pad-vocab-size-to 1024 --embed-layernorm "
                  "--fp16 --zero-stage 1 --deepspeed \\\n"
                  " --pipeline-model-parallel-size 12 --pp-partition-method 'type:transformer|embedding' "
                  "--global-batch-size 2_048\"\n"
                  "srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a log\n",
                  no_size());
  ASSERT_WHOLE(in);
  EXPECT_EQ(in.job->cluster.nodes, 3);
  EXPECT_EQ(in.job->training.global_batch, 2048);
  EXPECT_TRUE(in.job->model.embedding_norm);
  EXPECT_TRUE(in.job->strategy.account_for_loss);  // 10 layers, embedding and head on 12 stages
  EXPECT_EQ(in.job->strategy.data_parallel, DataParallel::zero1);
}

// P92: two files set the same key: both are named, none wins in silence.
TEST(Launch, TwoFilesThatDisagreeAreAFault) {
  const auto in = import_files({{"go.sh", "torchrun --nproc_per_node 8 train.py" + kArgs},
                                {"ds.json", "{\"train_micro_batch_size_per_gpu\": 4}"}},
                               no_size());
  EXPECT_FALSE(in.job);
  EXPECT_THAT(errors(in), HasSubstr("ds.json:1: train_micro_batch_size_per_gpu: 4 (training.micro_batch 4) contradicts "
                                    "go.sh:1: --micro-batch-size (2)"));
  Options decided = no_size();
  decided.set = {"training.micro_batch=4"};
  const auto again = import_files({{"go.sh", "torchrun --nproc_per_node 8 train.py" + kArgs},
                                   {"ds.json",
                                    "{\"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": true}, "
                                    "\"zero_optimization\": {\"stage\": 1}}"}},
                                  decided);
  EXPECT_THAT(again.report.notes, Contains(HasSubstr("is replaced by 4, from the command line")));
}

}  // namespace
}  // namespace wt::import
