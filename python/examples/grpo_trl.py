"""GRPO with TRL 1.16 on rollouts of a real coding agent.

    python grpo_trl.py                    a tiny random model, on a CPU, is trained on rollouts of the scripted model
    python grpo_trl.py --vllm URL MODEL   TRL's asynchronous trainer, on GPUs; its own vLLM samples the rollouts

On a CPU this shows the whole way from agent to gradient; it teaches nothing, as the tokens are another model's. With
vLLM it is on-policy; start it as TRL's documentation of asynchronous GRPO says, with `--return-tokens-as-token-ids` and
a tool parser.

It needs `trl==1.16.0`, `openenv==0.10.0`, and for `--vllm` also `vllm`.
"""

from __future__ import annotations

import argparse
import functools
import logging
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dressage
from dressage.openenv import OpenCodeConfig, OpenCodeSessionFactory, OpenCodeTask, SandboxHandle, VerifyResult

INSTRUCTION = (
    "Create binary_search.py exposing def binary_search(arr, target) -> int that returns the index of target in arr,"
    " or -1 if absent. Use a relative path."
)

CASES = [([1, 2, 3], 2, 1), ([], 1, -1), ([5], 5, 0), ([1, 3], 2, -1)]

VOCABULARY = 4096
"""Token ids that the tiny model knows; the scripted model uses about three thousand."""


def verifier(sandbox: SandboxHandle, task: OpenCodeTask) -> VerifyResult:
    """Gives the share of cases that the agent's function gets right. It runs in the sandbox, after the agent.

    Each case is a process of its own, whose output is compared here: an agent's code that exits early passes nothing.
    """
    del task
    passed = 0
    for arr, target, index in CASES:
        program = f"import binary_search as b; print(b.binary_search({arr!r}, {target!r}))"
        ran = sandbox.exec(f'python -c "{program}"', cwd="/home/user/workdir", timeout=10)
        passed += ran.exit_code == 0 and ran.stdout.strip() == str(index)
    return VerifyResult(env_reward=passed / len(CASES), done=True, metrics={"passed": passed})


def on_gpus(vllm: str, model: str) -> None:
    """Trains `model` asynchronously; the agent's loop, its turns and its reward are all Dressage's."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
    from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

    config = AsyncGRPOConfig(output_dir="out", vllm_server_base_url=vllm, num_generations=8, max_steps=100)
    tokenizer = AutoTokenizer.from_pretrained(model)
    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": INSTRUCTION}]]})
    # The worker's process makes the factory, with `sampling` of its own policy.
    factory = functools.partial(
        OpenCodeSessionFactory,
        config=OpenCodeConfig(base_url=f"{vllm.rstrip('/')}/v1", model=model, agent_timeout_s=600.0),
        mode="transparent_proxy",
        verifier=verifier,
    )
    worker = HarnessRolloutWorker(
        harness_session_factory=factory,
        model_name=model,
        dataset=dataset,
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=config.num_generations,
        max_inflight_tasks=16,
        vllm_server_url=vllm,
        temperature=config.temperature,
    )
    AsyncGRPOTrainer(
        model=model,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        rollout_worker=worker,
    ).train()


class Rollouts:
    """What TRL's `GRPOTrainer` calls for a batch: runs it, and gives tokens, masks, log-probabilities and rewards.

    `GRPOTrainer` takes one row of tokens for a rollout. Where an agent rewrites its history, a rollout has several, of
    which this gives the one with the most trained tokens; the asynchronous trainer takes all.

    The scripted model always does the same. For a group with something to compare, the factories take turns.
    """

    def __init__(self, factories: list[OpenCodeSessionFactory], pad: int) -> None:
        self.factories = factories
        self.pad = pad

    def __call__(self, prompts: list[Any], trainer: object) -> dict[str, list[Any]]:
        """Runs the rollouts of a batch at once."""
        del trainer
        with ThreadPoolExecutor(max_workers=len(prompts)) as pool:
            rows = list(pool.map(self.one, range(len(prompts)), prompts))
        return {key: [row[key] for row in rows] for key in rows[0]}

    def one(self, index: int, prompt: Any) -> dict[str, Any]:
        """Runs one rollout. One that fails has no reward, and nothing that is trained."""
        from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences
        from trl.experimental.async_grpo.openenv_harness import _turns_from_training_trace

        nothing = {
            "prompt_ids": [self.pad],
            "completion_ids": [self.pad],
            "logprobs": [0.0],
            "env_mask": [0],
            "env_reward": None,
        }
        try:
            session = self.factories[index % len(self.factories)].create(prompt)
        except RuntimeError as error:
            logging.warning("no rollout: %s", error)
            return nothing
        try:
            session.wait_for_completion()
            turns = _turns_from_training_trace(session.fetch_training_trace())
            reward = session.verify([]).env_reward
        except (RuntimeError, TimeoutError) as error:
            logging.warning("a rollout failed: %s", error)
            return nothing
        finally:
            session.close()
        rows, _ = _chain_to_sequences(turns, str(session.rollout_id), 0)
        row = max(rows, key=lambda row: sum(row.completion_mask))
        # Everything before the first trained token is prompt.
        start = row.completion_mask.index(1)
        return {
            "prompt_ids": row.input_ids[:start],
            "completion_ids": row.input_ids[start:],
            "logprobs": row.old_log_probs[start:],
            "env_mask": row.completion_mask[start:],
            "env_reward": reward,
        }


def environment_reward(env_reward: list[float | None], **_: Any) -> list[float | None]:
    """Gives the reward that came with each rollout; None is no verdict, and stays out of the group's mean."""
    return env_reward


def on_a_cpu(server: str, steps: int) -> None:
    """Trains a tiny random model on rollouts of the scripted one."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    words = {f"<{token}>": token for token in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")),
        eos_token="<1>",
        pad_token="<2>",
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=65536,
        )
    )
    # With its tools the agent solves the task; without them it can only talk.
    factories = [
        OpenCodeSessionFactory(
            config=OpenCodeConfig(endpoint="demo", agent_timeout_s=600.0, disabled_tools=disabled),
            mode="transparent_proxy",
            verifier=verifier,
            sampling={"temperature": 1.0},
            server=server,
        )
        for disabled in ([], ["write", "bash"])
    ]
    rewards: list[Any] = [environment_reward]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                num_generations=2,
                per_device_train_batch_size=2,
                max_steps=steps,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
            ),
            train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": INSTRUCTION}]] * 2}),
            processing_class=tokenizer,
            reward_funcs=rewards,
            rollout_func=Rollouts(factories, tokenizer.pad_token_id),
        )
        trainer.train()
    for line in trainer.state.log_history:
        if "reward" in line:
            print(
                f"step {line['step']}: reward {line['reward']:g} (standard deviation {line['reward_std']:.3g}),"
                f" {line['completions/mean_length']:.0f} tokens, gradient {line['grad_norm']:.3g}"
            )


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", nargs=2, metavar=("URL", "MODEL"))
    parser.add_argument("--server", help="a running `dressage serve`; without it one is started")
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.vllm:
        on_gpus(*arguments.vllm)
    elif arguments.server:
        on_a_cpu(arguments.server, arguments.steps)
    else:
        with dressage.serve() as server:
            on_a_cpu(server.url, arguments.steps)


if __name__ == "__main__":
    main()
