# Llama-2-7B with Colossal-AI's Gemini plugin, as its users write it; read by
#   windtunnel import examples/colossalai_gemini.py --model llama2-7b --cluster dgx-a100-80 --nodes 4 --set training.seq_len=4096
import argparse

import colossalai
from colossalai.booster import Booster
from colossalai.booster.plugin import GeminiPlugin
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch_size", type=int, default=16, help="of each GPU")
parser.add_argument("--prefetch", type=int, default=0, help="chunks that are gathered ahead")
args = parser.parse_args()

colossalai.launch_from_torch()
plugin = GeminiPlugin(
    precision="bf16",
    placement_policy="static",
    shard_param_frac=1.0,
    max_prefetch=args.prefetch,
    enable_flash_attention=True,
    max_norm=1.0,
)
booster = Booster(plugin=plugin)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("llama2-7b"))
model.gradient_checkpointing_enable()
loader = plugin.prepare_dataloader(load_data(), batch_size=args.batch_size, shuffle=True)
