#!/bin/bash
# A launch script of Megatron-LM, to be imported: an 8-billion model on two nodes of eight GPUs. One flag is misspelt.
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
  --position-embedding-type rope --normalization RMSNorm --swiglu \
  --disable-bias-linear --untie-embeddings-and-output-weights \
  --seq-length 8192 --max-position-embeddings 8192 \
  --tensor-model-parallel-size 4 --sequence-parallel \
  --micro-batch-size 1 \
  --global-batch-size 128 \
  --bf16 --use-distributed-optimizer --use-flash-attn --lr 3.0e-4 \
  --save-intervall 500 \
  --attention-dropout 0 --hidden-dropout 0
