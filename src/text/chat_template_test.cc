#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "text/tokenizer.h"

namespace cofferdam::text {
namespace {

struct Loaded {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<const ChatTemplate> chat;
};

Loaded LoadChat(const std::string& name) {
  Loaded loaded;
  loaded.tokenizer = *Tokenizer::Load(std::string(COFFERDAM_VOCABULARIES) + "/ggml-vocab-" + name + ".gguf");
  auto chat = ChatTemplate::Create(*loaded.tokenizer);
  EXPECT_TRUE(chat.ok()) << chat.status();
  loaded.chat = *std::move(chat);
  return loaded;
}

ChatMessage Say(std::string role, std::string content) {
  ChatMessage message;
  message.role = std::move(role);
  message.content = std::move(content);
  return message;
}

TEST(ChatTemplate, AppliesTheFilesTemplate) {
  const Loaded qwen = LoadChat("qwen2");
  EXPECT_TRUE(qwen.chat->from_file());
  const auto prompt =
      qwen.chat->Apply({Say("system", "Be brief."), Say("user", "Hi"), Say("assistant", "Hello"), Say("user", "Bye")}, true);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(*prompt,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "Hello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, FallsBackToChatMl) {
  const Loaded llama = LoadChat("llama-spm");
  EXPECT_FALSE(llama.chat->from_file());
  const auto prompt = llama.chat->Apply({Say("user", "Hi")}, true);
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(*prompt, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, JoinsTextParts) {
  const Loaded qwen = LoadChat("qwen2");
  ChatMessage message = Say("user", "");
  message.parts = {"one", "two"};
  const auto prompt = qwen.chat->Apply({message}, true);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_NE(prompt->find("one"), std::string::npos);
  EXPECT_NE(prompt->find("two"), std::string::npos);
}

TEST(ChatTemplate, TheBosIsNotDoubled) {
  const Loaded command = LoadChat("command-r");
  const auto prompt = command.chat->Apply({Say("user", "Hi")}, true);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  const auto tokens = command.tokenizer->Tokenize(*prompt, true, true);
  ASSERT_GE(tokens->size(), 2u);
  EXPECT_EQ(tokens->at(0), command.tokenizer->bos());
  EXPECT_NE(tokens->at(1), command.tokenizer->bos());
}

TEST(ChatTemplate, ARefusalIsAnError) {
  const Loaded command = LoadChat("command-r");
  const auto prompt = command.chat->Apply({Say("user", "a"), Say("user", "b")}, true);
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, StrangeConversationsNeverThrow) {
  for (const char* name : {"qwen2", "phi-3", "command-r", "llama-spm", "qwen35"}) {
    const Loaded loaded = LoadChat(name);
    for (const std::string& content :
         {std::string(), std::string("\0x", 2), std::string("{{ 1/0 }}{% for %}"), std::string(100000, 'x')}) {
      for (const char* role : {"user", "system", "assistant", "tool", "developer", "", "nobody"}) {
        (void)loaded.chat->Apply({Say(role, content)}, true);
        (void)loaded.chat->Apply({Say(role, content), Say("user", "x")}, false);
      }
    }
    (void)loaded.chat->Apply({}, true);
  }
}

TEST(ChatTemplate, IsThreadSafe) {
  const Loaded qwen = LoadChat("qwen2");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&qwen, i] {
      const std::string word = "word" + std::to_string(i);
      for (int round = 0; round < 100; ++round) {
        const auto prompt = qwen.chat->Apply({Say("user", word)}, true);
        ASSERT_TRUE(prompt.ok());
        EXPECT_NE(prompt->find(word), std::string::npos);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cofferdam::text
